"""Code shared by the tests of `old_runs`."""
