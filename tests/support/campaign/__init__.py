"""What tests of `campaign` share."""
