"""What tests of `docs` share."""
