"""Guests in containers of Docker."""
