"""What tests of `ansible` share."""
