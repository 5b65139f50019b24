"""Code shared by the tests of `report`."""
