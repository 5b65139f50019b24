"""A live run beside its simulation, against the noise of runs that were repeated."""
