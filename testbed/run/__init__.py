"""The history of a run: the events of its journal."""
