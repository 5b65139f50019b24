"""Runs and simulations as objects of Python, for notebooks and scripts; `testbed` exports them."""
