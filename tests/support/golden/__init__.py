"""Code shared by the tests of `golden`."""
