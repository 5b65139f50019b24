"""Comparison of live runs with their simulations, relative to the noise between repeated runs."""
