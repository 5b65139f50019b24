"""Code shared by the tests of `box`."""
