"""Code shared by the tests of `docs`."""
