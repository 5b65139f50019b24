"""What tests of `control` share."""
