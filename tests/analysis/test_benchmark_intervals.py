"""Intervals of the benchmarks: by ranks, with at least their level, whatever the number of values."""

from __future__ import annotations

import importlib.util
from fractions import Fraction
from math import comb
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_SPEC = importlib.util.spec_from_file_location("intervals", ROOT / "benchmarks/intervals.py")
assert _SPEC is not None
assert _SPEC.loader is not None
intervals = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(intervals)


def coverage(values: int, rank: int) -> float:
    """Return the probability that the median is between the values of a rank from below and from above."""
    return 1.0 - float(Fraction(2 * sum(comb(values, each) for each in range(rank + 1)), 2**values))


@pytest.mark.parametrize("values", [*range(6, 60), 99, 100, 500, 501, 1000, 5000])
def test_no_narrower_interval_has_the_level(values: int) -> None:
    rank = intervals.rank_of(values)
    assert coverage(values, rank) >= 0.95
    assert coverage(values, rank + 2) < 0.95, "by the normal distribution ranks may be one too low"
    if values <= 500:
        assert coverage(values, rank + 1) < 0.95


def test_few_values_have_their_range_and_its_level() -> None:
    assert intervals.interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert intervals.interval_text([3.0, 1.0, 2.0]) == "1 to 3, 75 %"
    assert intervals.interval_text([1.0, 2.0, 3.0, 4.0, 5.0]) == "1 to 5, 93.8 %"
    assert intervals.interval_text([6.0, 1.0, 2.0, 3.0, 4.0, 5.0]) == "1 to 6"
    assert intervals.interval_text([float(each) for each in range(10)], ".1f") == "1.0 to 8.0"
    assert intervals.cells([4.0]) == (1, "4.000", "4.000 to 4.000, 0 %")
