"""The page of a calibration, and its figures."""
