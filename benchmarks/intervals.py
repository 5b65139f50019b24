"""Medians with their intervals, and cells of tables that show them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import median

RESAMPLES = 2000
LEAST_VALUES = 6  # for a 95 % interval of a median
_TAIL = 0.025
_MANY = 500  # values, from which on ranks are by the normal distribution


def bootstrap(statistic: Callable[[random.Random], float]) -> tuple[float, float]:
    """Return the 95 % interval of a statistic of resampled values."""
    draw = random.Random(1)  # noqa: S311  # a fixed seed, so that the same values give the same interval
    found = sorted(statistic(draw) for _ in range(RESAMPLES))
    return found[round(0.025 * (RESAMPLES - 1))], found[round(0.975 * (RESAMPLES - 1))]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median by the ranks of the values, for any distribution.

    Of fewer than `LEAST_VALUES` values it is the range, which covers the median less often: all n values are on one
    side of the median with a probability of 2 / 2^n.
    """
    ordered, rank = sorted(values), rank_of(len(values))
    return ordered[rank], ordered[-1 - rank]


def rank_of(values: int) -> int:
    """Return the highest rank, from 0, whose value is above the median in at most 2.5 % of samples of this size."""
    if values > _MANY:
        return max(0, math.floor(values / 2 - 0.98 * math.sqrt(values)) - 1)
    rank, below = 0, 0.5**values
    while (below := below + math.comb(values, rank + 1) * 0.5**values) <= _TAIL:
        rank += 1
    return rank


def interval_text(values: Sequence[float], form: str = ".3g") -> str:
    """Return the interval of the median as text, with its level if that is not 95 %."""
    low, high = interval(values)
    return f"{low:{form}} to {high:{form}}{level_text(len(values))}"


def level_text(values: int) -> str:
    """Return the level of the interval of so many values for a table, empty if it is 95 %."""
    return "" if values >= LEAST_VALUES else f", {100 * (1 - 2 ** (1 - values)):.3g} %"


def ratio_of_medians(above: Sequence[float], below: Sequence[float]) -> tuple[float, float, float]:
    """Return the ratio of two medians with its interval; both sides are resampled independently."""
    low, high = bootstrap(
        lambda draw: median(draw.choices(above, k=len(above))) / median(draw.choices(below, k=len(below)))
    )
    return median(above) / median(below), low, high


def cells(values: Sequence[float], digits: int = 3) -> tuple[int, str, str]:
    """Return n, median and interval of a table's row."""
    return len(values), f"{median(values):.{digits}f}", interval_text(values, f".{digits}f")
