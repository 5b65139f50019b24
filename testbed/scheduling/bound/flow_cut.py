"""Capacity of a set of jobs (the CPU time until their deadlines), and the stretch at which it equals their work."""

from __future__ import annotations

import numpy as np

from testbed.scheduling.bound.flow_network import Floats
from testbed.scheduling.compiler import kernel

_PRECISION = 1e-9  # relative, of the stretch of a cut, which is rounded down


@kernel
def capacity(release_s: Floats, deadline_s: Floats, rate: Floats, nodes: float) -> float:
    """Return the most CPU seconds that these jobs together can get; `nodes` and their rates (CPUs) limit them."""
    jobs = release_s.size
    times_s = np.concatenate((release_s, deadline_s))
    active = 0  # without active jobs the demand is set to 0, as rounding errors may remain
    demand, before_s, total = 0.0, 0.0, 0.0
    for index in np.argsort(times_s, kind="mergesort"):
        if active > 0:
            total += min(demand, nodes) * (times_s[index] - before_s)
        before_s = times_s[index]
        if index < jobs:
            active += 1
            demand += rate[index]
        else:
            active -= 1
            demand = demand - rate[index - jobs] if active > 0 else 0.0
    return total


@kernel
def stretch_of_cut(
    release_s: Floats, least_s: Floats, work: Floats, rate: Floats, nodes: float, at_least: float
) -> float:
    """Return the stretch, from `at_least` up, at which the capacity of these jobs reaches their work, rounded down.

    Capacity grows with the stretch, so bisection finds it. Jobs (J,) have `work` in CPU seconds.
    """
    demand = 0.0
    for amount in work:
        demand += amount
    low, high, step = at_least, at_least, 0.01 * at_least
    while capacity(release_s, release_s + high * least_s, rate, nodes) < demand:
        low = high
        high = low + step
        step *= 2.0
    while high - low > _PRECISION * high:
        middle = (low + high) / 2.0
        if capacity(release_s, release_s + middle * least_s, rate, nodes) < demand:
            low = middle
        else:
            high = middle
    return low
