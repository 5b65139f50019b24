"""What tests of `box` share."""
