"""Two kernels, one of which calls the other."""

from typing import NamedTuple

import numpy as np

from testbed.scheduling.compiler import kernel, lean_kernel


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


@lean_kernel
def first_of_both(series, out) -> float:
    head = series.values[:1]
    out[0] = head[0]
    return head[0] + series.weights[0]


@lean_kernel
def calls_another(series) -> float:
    return weighted_sum(series, 1.0)


def returns_its_argument(series) -> Series:
    return series
