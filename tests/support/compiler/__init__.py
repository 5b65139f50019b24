"""Code shared by the tests of `compiler`."""
