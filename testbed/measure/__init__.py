"""What is measured: points and their schema, the run directory, metrics, the offline bound."""
