"""What dead runs and killed agents left on a machine, found and removed."""
