"""What tests of `old_runs` share."""
