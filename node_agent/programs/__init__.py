"""Workloads that run inside guests."""
