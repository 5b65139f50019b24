"""What happened in a run: the events of its journal."""
