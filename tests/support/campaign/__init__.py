"""Code shared by the tests of `campaign`."""
