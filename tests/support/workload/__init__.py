"""What tests of `workload` share."""
