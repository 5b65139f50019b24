"""Two kernels, one of which calls the other."""

from typing import NamedTuple

import numpy as np

from testbed.compiler import kernel


class Series(NamedTuple):
    values: np.ndarray
    weights: np.ndarray


@kernel
def weighted_sum(series, factor):
    total = 0.0
    for index in range(series.values.size):
        total += series.values[index] * series.weights[index] * factor
    return total


@kernel
def difference(series, out):
    out[0] = weighted_sum(series, 2.0) - weighted_sum(series, 0.1)
    return out[0] > 0.0
