"""Code shared by the tests of `guests`."""
