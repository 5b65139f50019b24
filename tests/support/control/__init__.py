"""Code shared by the tests of `control`."""
