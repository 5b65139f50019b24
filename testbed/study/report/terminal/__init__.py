"""What a terminal shows of runs: the live display, and tables afterwards."""
