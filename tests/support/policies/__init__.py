"""Code shared by the tests of `policies`."""
