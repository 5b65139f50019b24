"""Equivalence test of an error against its goal: two one-sided tests over repeats, and the number of repeats needed.

Each run gives one error, such as the median over jobs of the relative errors of their turnarounds. Runs are the
independent units. The mean error over runs has two one-sided bounds of 95 % each, by a bootstrap over runs. If the
upper bound is at most the goal, simulation and live runs are equal within the goal. If the lower bound is above the
goal, they are different. Otherwise neither is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from statistics import NormalDist, fmean, stdev

import numpy as np

from testbed.measure.robust import t_quantile_95

EQUAL, DIFFERENT, NOT_SHOWN = "equal", "different", "not shown"
LEAST_RUNS = 5  # repeats of a design: fewer support no verdict
POWER = 0.8
_MOST_RUNS = 1000
_RESAMPLES = 4000
_SEED = 20112


@dataclass(frozen=True, slots=True)
class Equivalence:
    """The mean error over runs with its one-sided bounds and its goal; the bounds are infinite for a single run."""

    mean: float
    low: float
    high: float
    deviation: float
    runs: int
    goal: float

    @property
    def verdict(self) -> str:
        """The verdict; fewer than `LEAST_RUNS` runs show nothing, as their range limits the bounds of the bootstrap."""
        if self.runs < LEAST_RUNS:
            return NOT_SHOWN
        if self.high <= self.goal:
            return EQUAL
        return DIFFERENT if self.low > self.goal else NOT_SHOWN

    @property
    def needed(self) -> int | None:
        """Number of runs to show the verdict of the present mean, if mean and deviation stay; None above 1000."""
        return repeats_needed(self.deviation, abs(self.goal - self.mean)) if self.runs > 1 else LEAST_RUNS


def equivalence(errors: Sequence[float], goal: float) -> Equivalence:
    """Test the errors of at least one run, each 0 or more, against a goal."""
    count, mean = len(errors), fmean(errors)
    if count < 2:
        return Equivalence(mean, -inf, inf, 0.0, count, goal)
    values = np.asarray(errors, dtype=np.float64)
    draw = np.random.default_rng(_SEED)
    means = values[draw.integers(0, count, (_RESAMPLES, count))].mean(axis=1)
    # percentile intervals of a bootstrap over few units are too narrow: see `testbed.measure.robust.expanded_interval`
    tail = NormalDist().cdf(-sqrt(count / (count - 1)) * t_quantile_95(count - 1))
    low, high = np.quantile(means, (tail, 1.0 - tail))
    return Equivalence(mean, float(low), float(high), stdev(errors), count, goal)


def repeats_needed(deviation: float, distance: float, power: float = POWER) -> int | None:
    """Return the number of runs that show with this power on which side of a goal a mean is, at least `LEAST_RUNS`.

    `deviation` is the standard deviation of one run's error, `distance` that of the mean from the goal. Return None if
    more than 1000 runs are needed.
    """
    if not (isfinite(deviation) and isfinite(distance)) or distance <= 0.0:
        return None if deviation > 0.0 or distance <= 0.0 else LEAST_RUNS
    z = NormalDist().inv_cdf(power)
    for count in range(LEAST_RUNS, _MOST_RUNS + 1):
        if (t_quantile_95(count - 1) + z) * deviation / sqrt(count) <= distance:
            return count
    return None


def power_of(count: int, deviation: float, distance: float) -> float:
    """Return the approximate probability that `count` runs show on which side of a goal a mean is."""
    if deviation <= 0.0:
        return 1.0 if distance > 0.0 else 0.0
    return NormalDist().cdf(distance * sqrt(count) / deviation - t_quantile_95(count - 1))
