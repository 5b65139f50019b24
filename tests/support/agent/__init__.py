"""Code shared by the tests of `agent`."""
