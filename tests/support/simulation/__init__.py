"""What tests of `simulation` share."""
