"""What tests of `containers` share."""
