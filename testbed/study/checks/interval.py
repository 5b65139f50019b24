"""The median of few measured values with its bootstrap interval: exact, so the same values give the same interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, isfinite
from statistics import median

LEAST_VALUES = 5
_TAIL = 0.025


@dataclass(frozen=True, slots=True)
class MedianInterval:
    """Median of `values`, one per fresh guest, with its 95 % interval [`low`, `high`], in the unit of the values."""

    values: tuple[float, ...]
    value: float
    low: float
    high: float


def median_interval(values: Sequence[float]) -> MedianInterval:
    """Return the median with its percentile bootstrap interval, that of infinitely many resamples.

    The median of n values drawn from n sorted ones is at most the k-th of them exactly if at least half of the draws
    are, by the binomial distribution. For even n the lower bound is that of the lower of both middle values,
    the upper bound that of the upper one: a little too wide rather than too narrow. Five values give [least, greatest].
    Raises `ValueError` for fewer than `LEAST_VALUES`, or for one that is not finite.
    """
    if len(values) < LEAST_VALUES:
        raise ValueError(f"{len(values)} values: expected at least {LEAST_VALUES}, each of a fresh guest")
    if not all(map(isfinite, values)):
        raise ValueError(f"{list(values)}: expected finite values")
    ordered = sorted(values)
    n = len(ordered)
    lower_middle, upper_middle = (n + 1) // 2, n // 2 + 1
    low = next(x for k, x in enumerate(ordered, 1) if _at_most(n, k, lower_middle) >= _TAIL)
    high = next(x for k, x in enumerate(ordered, 1) if _at_most(n, k, upper_middle) >= 1.0 - _TAIL)
    return MedianInterval(tuple(values), float(median(ordered)), low, high)


def _at_most(n: int, k: int, order: int) -> float:
    """Return how probable it is that the `order`-th of n draws from n values is at most the k-th value."""
    if k == n:
        return 1.0
    favourable = sum(comb(n, hits) * k**hits * (n - k) ** (n - hits) for hits in range(order, n + 1))
    return float(favourable / n**n)
