"""Code shared by the tests of `bus`."""
