"""Code shared by the tests of `simulation`."""
