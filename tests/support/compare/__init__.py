"""Code shared by the tests of `compare`."""
