"""CPU caps of processes, by what the machine allows."""
