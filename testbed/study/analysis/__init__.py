"""Runs and simulations as Python objects, for notebooks and scripts; `testbed` exports them."""
