"""Drivers: one per kind of guest, behind one small protocol."""
