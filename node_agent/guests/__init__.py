"""Guests: the protocols between an agent and the programs inside."""
