"""What tests of `bus` share."""
