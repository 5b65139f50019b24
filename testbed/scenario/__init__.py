"""Scenario files: their schema, their validation, and the jobs of their workloads."""
