"""The process manager of MPI ranks: version 1 of its interface, served to each rank by the agent that started it."""
