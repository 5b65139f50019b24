"""Code shared by the tests of `calibration`."""
