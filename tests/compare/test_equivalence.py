"""Two one-sided tests over repeats: cases by hand, and their error rates on random runs."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.study.compare.equivalence import (
    DIFFERENT,
    EQUAL,
    LEAST_RUNS,
    NOT_SHOWN,
    Equivalence,
    equivalence,
    power_of,
    repeats_needed,
)

GOAL = 0.05


def test_runs_that_agree_are_equal_or_different_and_one_run_shows_nothing() -> None:
    assert equivalence([0.01, 0.012, 0.011, 0.009, 0.01], GOAL).verdict == EQUAL
    assert equivalence([0.10, 0.12, 0.11, 0.09, 0.10], GOAL).verdict == DIFFERENT
    assert equivalence([0.01, 0.09, 0.05, 0.02, 0.08], GOAL).verdict == NOT_SHOWN
    assert equivalence([0.01, 0.012, 0.011, 0.009], GOAL).verdict == NOT_SHOWN, "four are too few"
    alone = equivalence([0.01], GOAL)
    assert (alone.verdict, alone.low, alone.high, alone.needed) == (NOT_SHOWN, -inf, inf, LEAST_RUNS)


def test_what_would_be_needed() -> None:
    assert Equivalence(0.04, 0.02, 0.06, 0.02, 5, GOAL).needed == 27
    assert Equivalence(0.05, 0.02, 0.08, 0.02, 5, GOAL).needed is None, "at the goal no number of runs suffices"
    assert repeats_needed(0.0, 0.01) == LEAST_RUNS
    assert repeats_needed(0.02, 0.0001) is None
    assert repeats_needed(0.02, 0.05) == LEAST_RUNS


@given(st.floats(0.001, 0.2), st.floats(0.001, 0.2))
def test_the_number_that_is_needed_has_the_power_and_one_less_has_not(deviation: float, distance: float) -> None:
    count = repeats_needed(deviation, distance)
    if count is not None:
        assert power_of(count, deviation, distance) >= 0.8 - 1e-9
        assert count == LEAST_RUNS or power_of(count - 1, deviation, distance) < 0.8


@pytest.mark.parametrize(("runs", "wrong_at_most"), [(5, 0.08), (10, 0.07), (20, 0.07)])
def test_an_error_at_the_goal_is_seldom_called_equal_or_different(runs: int, wrong_at_most: float) -> None:
    """Each side is wrong in about one of twenty studies, also with few runs."""
    draw = np.random.default_rng(3)
    verdicts = [equivalence(draw.normal(GOAL, 0.01, runs).tolist(), GOAL).verdict for _ in range(400)]
    assert verdicts.count(EQUAL) / 400 <= wrong_at_most
    assert verdicts.count(DIFFERENT) / 400 <= wrong_at_most


def test_a_design_has_about_the_power_that_was_printed_for_it() -> None:
    deviation, error = 0.02, 0.03
    count = repeats_needed(deviation, GOAL - error)
    draw = np.random.default_rng(4)
    verdicts = [equivalence(draw.normal(error, deviation, count).tolist(), GOAL).verdict for _ in range(400)]
    assert 0.7 <= verdicts.count(EQUAL) / 400 <= 0.9
