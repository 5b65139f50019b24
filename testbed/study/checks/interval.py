"""The median of few values with its exact percentile bootstrap interval: no random resamples, so it is reproducible."""

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
    """Return the median with its 95 % percentile bootstrap interval in the limit of infinitely many resamples.

    The median of n draws with replacement from n sorted values is at most the k-th value exactly if at least half of
    the draws are. The binomial distribution gives the probability of that. For even n the lower bound uses the lower
    of the two middle draws and the upper bound the upper one: the interval is then slightly too wide, never too narrow.
    For five values the interval is [least, greatest]. Raises `ValueError` for fewer than `LEAST_VALUES` values, or for
    a value that is not finite.
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
    """Return the probability that the `order`-th smallest of n draws from n values is at most the k-th value."""
    if k == n:
        return 1.0
    favourable = sum(comb(n, hits) * k**hits * (n - k) ** (n - hits) for hits in range(order, n + 1))
    return float(favourable / n**n)
