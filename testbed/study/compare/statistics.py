"""Statistics of a comparison: errors, noise bands and orders of policies, as functions of arrays.

A *prediction* of a live run's jobs comes from the simulation or from the other live runs. Both are judged by the same
statistics, so that the errors of the live runs are the noise band for those of the simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isnan, log, nan, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.measure.robust import t_quantile_975
from testbed.scheduling.metrics import kendall_tau

Floats = NDArray[np.float64]

RESAMPLES = 1000
FLOOR_FRAC = 0.001  # least width of a band: jobs.csv has milliseconds, and work is counted in whole units
_SEED = 20111
_BLOCKS = 10


class Interval(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Band:
    """The noise band of a statistic: its value for each live run, which the other live runs predict (leave one out).

    `interval` is the 95 % interval of the mean over runs by a bootstrap over jobs.
    """

    values: tuple[float, ...]
    interval: Interval

    @property
    def high(self) -> float:
        """Upper edge, never less than `FLOOR_FRAC`."""
        return max(*self.values, FLOOR_FRAC)

    def holds(self, value: float) -> bool:
        """Return whether an error is not larger than the errors of live runs against each other."""
        return value <= self.high


def relative_errors(predicted: Floats, measured: Floats) -> Floats:
    """Return |predicted - measured| / measured, element by element; 0 where both are 0."""
    apart = np.abs(predicted - measured)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(apart == 0.0, 0.0, apart / np.abs(measured))


def median_error(predicted: Floats, measured: Floats) -> Floats:
    """Return the median over jobs of the relative errors; jobs are the last axis."""
    return np.asarray(np.median(relative_errors(predicted, measured), axis=-1))


def max_error(predicted: Floats, measured: Floats) -> Floats:
    """Return the relative error of the maximum over jobs; jobs are the last axis."""
    return relative_errors(predicted.max(axis=-1), measured.max(axis=-1))


STATISTICS = {"turnaround": median_error, "max_stretch": max_error}


def others(values: Floats, run: int) -> Floats:
    """Return the median over the other runs (J,) per job: `values` is (R, J), R >= 2."""
    return np.asarray(np.median(np.delete(values, run, axis=0), axis=0), dtype=np.float64)


def noise_band(name: str, measured: Floats) -> Band | None:
    """Return the noise band of a statistic over repeats (R, J); None for fewer than two runs."""
    if len(measured) < 2:
        return None
    predicted = np.stack([others(measured, run) for run in range(len(measured))])
    values = STATISTICS[name](predicted, measured)
    return Band(tuple(values.tolist()), mean_interval(name, predicted, measured))


def mean_interval(name: str, predicted: Floats, measured: Floats) -> Interval:
    """Return the 95 % interval of a statistic's mean over runs, by a bootstrap over jobs with a fixed seed."""
    draw = np.random.default_rng(_SEED)
    jobs = measured.shape[1]
    means = []
    for _ in range(_BLOCKS):  # blocks bound the memory for many jobs
        chosen = draw.integers(0, jobs, (RESAMPLES // _BLOCKS, jobs))
        means.append(STATISTICS[name](predicted[:, chosen], measured[:, chosen]).mean(axis=0))
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return Interval(float(low), float(high))


class Spread(NamedTuple):
    """Relative differences of one metric of jobs between repeats, over all pairs of runs."""

    median: float  # median over jobs of the mean over pairs
    largest: float  # maximum over jobs and pairs
    worst_job: int  # row of the job with the maximum
    interval: Interval  # of the median over jobs, by a bootstrap over jobs
    pairs: int


def spread(measured: Floats) -> Spread | None:
    """Return the spread between repeats (R, J): |a - b| over the mean of a and b; None for fewer than two runs."""
    if len(measured) < 2:
        return None
    differences = []
    for one, other in combinations(measured, 2):
        middle = (np.abs(one) + np.abs(other)) / 2
        differences.append(np.where(middle > 0.0, np.abs(one - other) / np.where(middle > 0.0, middle, 1.0), 0.0))
    table = np.stack(differences)
    by_job = table.mean(axis=0)
    draw = np.random.default_rng(_SEED)
    medians = np.median(by_job[draw.integers(0, by_job.size, (RESAMPLES, by_job.size))], axis=1)
    low, high = np.quantile(medians, (0.025, 0.975))
    return Spread(
        median=float(np.median(by_job)),
        largest=float(table.max()),
        worst_job=int(table.max(axis=0).argmax()),
        interval=Interval(float(low), float(high)),
        pairs=len(differences),
    )


class Pair(NamedTuple):
    """Two policies: logarithm of the ratio of the second's mean to the first's, live and simulated.

    `noise_frac` is the 95 % limit of the live difference, NaN without repeats.
    """

    first: str
    second: str
    live_frac: float
    simulated_frac: float
    noise_frac: float

    @property
    def told_apart(self) -> bool:
        """Whether the live difference exceeds the noise; False without repeats."""
        return not isnan(self.noise_frac) and abs(self.live_frac) > self.noise_frac

    @property
    def agrees(self) -> bool:
        """Whether the simulation orders the two policies as the live runs do."""
        return (self.live_frac > 0) == (self.simulated_frac > 0) and (self.live_frac < 0) == (self.simulated_frac < 0)


@dataclass(frozen=True, slots=True)
class Order:
    """The policies under equal conditions by one metric, best first, and how the simulated order agrees with it.

    `tau` is Kendall's tau over all pairs (ties of one ranking only count as half). `same` is whether the simulation
    orders all pairs that live runs distinguish in the same way, None if live runs distinguish no pair.
    """

    metric: str
    live: Mapping[str, float]
    simulated: Mapping[str, float]
    pairs: tuple[Pair, ...]
    tau: float
    same: bool | None


def order(metric: str, live: Mapping[str, Sequence[float]], simulated: Mapping[str, Sequence[float]]) -> Order:
    """Compare the orders of policies by a positive metric, of which smaller is better, given its values in every run.

    The noise is relative and pooled over policies: the standard deviation of the logarithm within policies. Two
    policies are distinguished if their means differ by more than its 95 % t-limit (a least significant difference,
    without a correction for many pairs).
    """
    means = {name: float(np.mean(values)) for name, values in live.items()}
    twins = {name: float(np.mean(simulated[name])) for name in live}
    freedom = sum(len(values) - 1 for values in live.values())
    within = sum(float(np.sum((np.log(v) - np.mean(np.log(v))) ** 2)) for v in live.values())
    pairs = []
    for first, second in combinations(sorted(means, key=means.__getitem__), 2):
        noise = nan
        if freedom > 0:
            size = sqrt(1 / len(live[first]) + 1 / len(live[second]))
            noise = max(t_quantile_975(freedom) * sqrt(within / freedom) * size, FLOOR_FRAC)
        pairs.append(Pair(first, second, log(means[second] / means[first]), log(twins[second] / twins[first]), noise))
    told = [pair for pair in pairs if pair.told_apart]
    tau = kendall_tau([means[name] for name in means], [twins[name] for name in means])
    return Order(
        metric,
        dict(sorted(means.items(), key=lambda item: item[1])),
        dict(sorted(twins.items(), key=lambda item: item[1])),
        tuple(pairs),
        nan if tau is None else tau,
        all(pair.agrees for pair in told) if told else None,
    )
