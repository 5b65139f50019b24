"""What tests of `calibration` share."""
