"""What tests of `compare` share."""
