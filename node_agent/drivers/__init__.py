"""Kinds of guests behind one small protocol."""
