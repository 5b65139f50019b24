"""Code shared by the tests of `secure`."""
