"""Scheduling policies: pure functions from a view of the cluster to a decision."""
