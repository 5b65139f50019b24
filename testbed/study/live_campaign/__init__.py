"""Campaigns of live runs: repeats in random order, disturbed ones again, ending in a comparison with simulations."""
