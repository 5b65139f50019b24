"""What tests of `golden` share."""
