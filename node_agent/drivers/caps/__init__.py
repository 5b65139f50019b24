"""CPU caps of processes, by the mechanisms that the machine allows."""
