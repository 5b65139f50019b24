"""Code shared by the tests of `containers`."""
