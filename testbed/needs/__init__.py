"""Estimation of CPU needs: the estimator that agents and simulations share."""
