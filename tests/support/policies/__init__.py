"""What tests of `policies` share."""
