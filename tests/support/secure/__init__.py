"""What tests of `secure` share."""
