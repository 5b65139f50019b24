"""Faults of a machine, a node or a lab, each with the command that fixes it."""
