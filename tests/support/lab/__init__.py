"""Code shared by the tests of `lab`."""
