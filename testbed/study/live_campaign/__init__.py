"""Campaigns of live runs: repeats in random order, repeats of disturbed runs, and a comparison with simulations."""
