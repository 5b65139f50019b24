"""The report page of a calibration, with its figures and tables."""
