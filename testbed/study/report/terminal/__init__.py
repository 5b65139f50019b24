"""The views of runs in a terminal: the live display, and tables of finished runs."""
