"""Weighted medians under many weightings at once, for a bootstrap."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def weighted_median(values: Floats, weights: Floats) -> Floats:
    """Return the median (R,) of `values` (n,) or (R, n) under each row of `weights` (R, n); NaN for a row of zeros."""
    if values.ndim == 1:
        order = np.argsort(values, kind="stable")
        ordered, weight = np.broadcast_to(values[order], weights.shape), weights[:, order]
    else:
        each = np.argsort(values, axis=1, kind="stable")
        ordered, weight = np.take_along_axis(values, each, 1), np.take_along_axis(weights, each, 1)
    below = np.cumsum(weight, axis=1)
    half = below[:, -1:] / 2.0
    lower = np.argmax(below >= half, axis=1)  # the two middle values, equal if one value covers the middle
    upper = np.argmax(below > half, axis=1)
    row = np.arange(weights.shape[0])
    return np.where(below[:, -1] > 0.0, (ordered[row, lower] + ordered[row, upper]) / 2.0, np.nan)
