"""What tests of `measure` share."""
