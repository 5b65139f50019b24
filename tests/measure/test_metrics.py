"""The formulas on figures worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.scheduling import metrics


def test_bounded_stretch():
    got = metrics.bounded_stretch([200.0, 5.0, 30.0, 30.0], [100.0, 1.0, 1.0, 20.0])
    assert got.tolist() == [2.0, 1.0, 3.0, 1.5]
    assert metrics.bounded_stretch(60.0, 1.0, tau_s=30.0) == 2.0


@given(st.floats(0.1, 1e6), st.floats(0, 1e6))
def test_bounded_stretch_is_never_below_one_for_a_real_turnaround(run_s, wait_s):
    assert metrics.bounded_stretch(run_s + wait_s, run_s) >= 1.0


def test_degradations():
    assert metrics.degradation_from_bound([1.0, 9.0, 3.0], 1.5) == 6.0


def test_traffic_and_occurrences():
    # Two preemptions over 100 s on nodes of 8 GB: 4 tasks of half a node, 1 task of a quarter: 18 GB, twice.
    assert metrics.traffic_gb_per_s([4, 1], [0.5, 0.25], 8.0, 100.0) == pytest.approx(0.36)
    assert metrics.traffic_gb_per_s([], [], 8.0, 100.0) == 0.0
    assert metrics.occurrences_per_hour(5, 1800.0) == 10.0
    assert metrics.occurrences_per_job(5, 2) == 2.5


def test_underutilisation():
    # Two nodes. Demand 3 (capped to 2) while 1.5 is useful for 10 s, then demand 1 all useful for 5 s.
    got = metrics.normalised_underutilisation([0.0, 10.0, 15.0], [3.0, 1.0], [1.5, 1.0], 2, work=20.0)
    assert got == pytest.approx(5.0 / 20.0)
    assert metrics.work_cpu_s([1, 4], [0.25, 1.0], [100.0, 10.0]) == 65.0
    with pytest.raises(ValueError, match="3 times enclose 2 steps: 3, 2 values"):
        metrics.normalised_underutilisation([0, 1, 2], [1, 1, 1], [1, 1], 2, 1.0)
    with pytest.raises(ValueError, match="decrease"):
        metrics.normalised_underutilisation([0, 2, 1], [1, 1], [1, 1], 2, 1.0)


def test_spread():
    got = metrics.spread([1.0, 2.0, 3.0, 6.0])
    assert (got.count, got.mean, got.maximum) == (4, 3.0, 6.0)
    assert got.std == pytest.approx(math.sqrt(14 / 3))
    assert math.isnan(metrics.spread([5.0]).std)
    with pytest.raises(ValueError, match="no values"):
        metrics.spread([])
