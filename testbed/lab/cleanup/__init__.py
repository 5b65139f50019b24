"""Finds and removes leftovers of dead runs and killed agents on a machine."""
