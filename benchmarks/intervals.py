"""Medians with bootstrap intervals, and cells of tables that show them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from statistics import median

RESAMPLES = 2000
LEAST_VALUES = 6  # for a 95 % interval of a median


def bootstrap(statistic: Callable[[random.Random], float]) -> tuple[float, float]:
    """Return the 95 % interval of a statistic of resampled values."""
    draw = random.Random(1)  # noqa: S311  # a fixed seed, so that the same values give the same interval
    found = sorted(statistic(draw) for _ in range(RESAMPLES))
    return found[round(0.025 * (RESAMPLES - 1))], found[round(0.975 * (RESAMPLES - 1))]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median; the range of fewer than `LEAST_VALUES` values, which covers it less often.

    The median is outside the range of n values only if all of them are on one side, with a probability of 2 / 2^n.
    """
    if len(values) < LEAST_VALUES:
        return min(values), max(values)
    return bootstrap(lambda draw: median(draw.choices(values, k=len(values))))


def interval_text(values: Sequence[float], form: str = ".3g") -> str:
    """Return the interval of the median as text, with its level if that is not 95 %."""
    low, high = interval(values)
    level = "" if len(values) >= LEAST_VALUES else f" ({100 * (1 - 2 ** (1 - len(values))):.3g} %)"
    return f"{low:{form}} to {high:{form}}{level}"


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
