"""Theorem 1 of [RR]: a lower bound of the maximum stretch of a trace, by maximum flows."""
