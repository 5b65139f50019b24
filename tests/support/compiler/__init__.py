"""What tests of `compiler` share."""
