"""Code shared by the tests of `workload`."""
