"""Medians with bootstrap intervals, and cells of tables that show them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from statistics import median

RESAMPLES = 2000


def bootstrap(statistic: Callable[[random.Random], float]) -> tuple[float, float]:
    """Return the 95 % interval of a statistic of resampled values."""
    draw = random.Random(1)  # noqa: S311  # a fixed seed, so that the same values give the same interval
    found = sorted(statistic(draw) for _ in range(RESAMPLES))
    return found[round(0.025 * (RESAMPLES - 1))], found[round(0.975 * (RESAMPLES - 1))]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval of the median."""
    return bootstrap(lambda draw: median(draw.choices(values, k=len(values))))


def ratio_of_medians(above: Sequence[float], below: Sequence[float]) -> tuple[float, float, float]:
    """Return the ratio of two medians with its interval; both sides are resampled independently."""
    low, high = bootstrap(
        lambda draw: median(draw.choices(above, k=len(above))) / median(draw.choices(below, k=len(below)))
    )
    return median(above) / median(below), low, high


def cells(values: Sequence[float], digits: int = 3) -> tuple[int, str, str]:
    """Return n, median and interval of a table's row."""
    low, high = interval(values)
    return len(values), f"{median(values):.{digits}f}", f"{low:.{digits}f} .. {high:.{digits}f}"
