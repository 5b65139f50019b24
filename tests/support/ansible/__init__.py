"""Code shared by the tests of `ansible`."""
