"""Code shared by the tests of `measure`."""
