"""Errors, bands, spreads and orders: exact cases by hand, and properties for any numbers."""

from __future__ import annotations

from itertools import combinations
from math import isnan, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from testbed.scheduling.metrics import kendall_tau
from testbed.study.compare.statistics import (
    FLOOR_FRAC,
    STATISTICS,
    mean_interval,
    noise_band,
    order,
    relative_errors,
    spread,
)

positive = st.floats(0.5, 1e6)
tables = hnp.arrays(np.float64, st.tuples(st.integers(2, 4), st.integers(1, 6)), elements=st.floats(0.5, 1e6))


def test_leave_one_out_by_hand() -> None:
    live = np.array([[100.0, 10.0], [110.0, 10.0], [100.0, 13.0]])
    band = noise_band("turnaround", live)
    # predictions: medians of the others: (105, 11.5), (100, 11.5), (105, 10)
    assert band.values == pytest.approx([(0.05 + 0.15) / 2, (10 / 110 + 0.15) / 2, (0.05 + 3 / 13) / 2])
    assert band.high == max(band.values)
    assert band.holds(band.high)
    assert not band.holds(band.high * 1.001)
    worst = noise_band("max_stretch", live)
    assert worst.values == pytest.approx([0.05, 10 / 110, 0.05])
    assert noise_band("turnaround", live[:1]) is None


def test_equal_repeats_have_the_least_band_and_no_spread() -> None:
    live = np.tile([3.0, 5.0, 7.0], (3, 1))
    band = noise_band("turnaround", live)
    assert band.values == (0.0, 0.0, 0.0)
    assert band.high == FLOOR_FRAC
    assert band.interval == (0.0, 0.0)
    assert spread(live)[:2] == (0.0, 0.0)
    assert spread(live).pairs == 3
    assert spread(live[:1]) is None


def test_the_spread_names_the_job_that_differs_most() -> None:
    found = spread(np.array([[10.0, 100.0, 1.0], [10.0, 110.0, 3.0]]))
    assert found.median == pytest.approx(10 / 105)
    assert found.largest == pytest.approx(1.0)
    assert (found.worst_job, found.pairs) == (2, 1)
    assert found.interval.low == 0.0
    assert found.interval.high == pytest.approx(1.0)


def test_errors_without_time_are_none() -> None:
    assert relative_errors(np.array([0.0, 1.0, 2.0]), np.array([0.0, 2.0, 1.0])).tolist() == [0.0, 0.5, 1.0]


@settings(max_examples=12)
@given(tables, st.floats(0.1, 10), st.randoms(use_true_random=False))
def test_bands_do_not_hang_on_units_or_on_the_order_of_runs_and_jobs(live, factor, random) -> None:
    runs, jobs = (random.sample(range(size), size) for size in live.shape)
    for name in STATISTICS:
        band, other = noise_band(name, live), noise_band(name, live[runs][:, jobs] * factor)
        assert other.values == pytest.approx([band.values[run] for run in runs])
        assert min(band.values) >= 0.0
    assert spread(live[runs] * factor)[:2] == pytest.approx(spread(live)[:2])


@settings(max_examples=12)
@given(tables)
def test_a_run_that_is_predicted_by_itself_is_inside_of_any_band(live) -> None:
    for name, statistic in STATISTICS.items():
        assert statistic(live, live).tolist() == [0.0] * len(live)
        assert noise_band(name, live).holds(0.0)


@settings(max_examples=12)
@given(tables, st.floats(0.01, 0.5))
def test_a_prediction_that_is_off_everywhere_by_a_share_has_that_error(live, share) -> None:
    for name, statistic in STATISTICS.items():
        assert statistic(live * (1 + share), live) == pytest.approx([share] * len(live))
        low, high = mean_interval(name, live * (1 + share), live)
        assert (low, high) == pytest.approx((share, share))


def test_intervals_over_jobs_cover_the_true_median_about_as_often_as_they_say() -> None:
    draw = np.random.default_rng(5)
    covered = 0
    for _ in range(60):
        live = np.ones((1, 40))
        errors = draw.exponential(0.1, (1, 40))
        low, high = mean_interval("turnaround", live + errors, live)
        covered += low <= 0.1 * log(2) <= high
    assert 50 <= covered <= 60


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=7))
def test_kendalls_tau_b_by_counting(values) -> None:
    agree = disagree = only_first = only_second = 0
    for (a, c), (b, d) in combinations(values, 2):
        agree += (a < b and c < d) or (a > b and c > d)
        disagree += (a < b and c > d) or (a > b and c < d)
        only_first += a != b and c == d
        only_second += a == b and c != d
    size = (agree + disagree + only_first) * (agree + disagree + only_second)
    wanted = (agree - disagree) / size**0.5 if size else None
    assert kendall_tau(*zip(*values, strict=True)) == (None if wanted is None else pytest.approx(wanted))
    assert wanted is None or -1 <= wanted <= 1


def test_an_order_is_the_same_where_live_runs_tell_policies_apart() -> None:
    live = {"a": [1.0, 1.02], "b": [2.0, 2.04], "c": [2.02, 2.05]}
    found = order("max stretch", live, {"a": [1.5], "b": [3.0], "c": [2.9]})
    assert list(found.live) == ["a", "b", "c"]
    assert list(found.simulated) == ["a", "c", "b"]
    assert [(pair.first, pair.second, pair.told_apart, pair.agrees) for pair in found.pairs] == [
        ("a", "b", True, True), ("a", "c", True, True), ("b", "c", False, False),
    ]  # fmt: skip
    assert found.same is True
    assert found.tau == pytest.approx(1 / 3)
    assert found.pairs[0].live_frac == pytest.approx(log(2))
    turned = order("max stretch", live, {"a": [4.0], "b": [3.0], "c": [2.9]})
    assert turned.same is False
    assert turned.tau == pytest.approx(-1)


def test_without_repeats_no_order_is_told() -> None:
    found = order("max stretch", {"a": [1.0], "b": [9.0]}, {"a": [1.0], "b": [9.0]})
    assert isnan(found.pairs[0].noise_frac)
    assert found.same is None
    assert found.tau == 1.0
    ties = order("max stretch", {"a": [1.0], "b": [1.0]}, {"a": [1.0], "b": [2.0]})
    assert isnan(ties.tau)
    one = order("max stretch", {"a": [1.0, 1.1], "b": [9.0]}, {"a": [1.0], "b": [9.0]})
    assert one.same is True, "the repeats of one policy give the noise of all"


def test_equal_policies_are_told_apart_about_as_rarely_as_the_limit_says() -> None:
    draw = np.random.default_rng(11)
    told = 0
    for _ in range(400):
        live = {name: draw.lognormal(0.0, 0.05, 3).tolist() for name in "ab"}
        told += order("x", live, {"a": [1.0], "b": [1.0]}).pairs[0].told_apart
    assert 8 <= told <= 36
