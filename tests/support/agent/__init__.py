"""What tests of `agent` share."""
