"""Guests: how an agent speaks with what runs inside."""
