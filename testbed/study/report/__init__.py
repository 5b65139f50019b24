"""What a person sees of a run: the live display, and tables afterwards."""
