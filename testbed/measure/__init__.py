"""Measurements: points and their schema, the run directory, and copies of it in a database."""
