"""Scenario files: their schema, and the jobs that they name."""
