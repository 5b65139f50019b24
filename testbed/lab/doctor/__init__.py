"""Checks of a machine, a node or a lab; each fault that they find has the command that fixes it."""
