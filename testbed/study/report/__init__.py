"""The views of a run: the live display, and tables afterwards."""
