"""The estimator of needs: cases by hand, and tasks of known need whose caps a policy changes."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from testbed.needs.estimator import Need, NeedEstimator, Window, error_of

NEEDS = st.floats(0.05, 1.0)
TOLD = st.booleans()


def window(need: float, cap: float, *, told: bool, wrong_frac: float = 0.0) -> Window:
    """Return a sample of a task with a given need, whose core is somewhat slower or faster than nominal.

    A task with a cap below its need uses a whole core unless it is throttled.
    """
    paced = need * (1.0 + wrong_frac)
    return Window(cap, min(paced, cap), (1.0 - cap if paced > cap else 0.0) if told else None)


def test_a_guest_that_is_not_held_back_needs_what_it_uses() -> None:
    seen = NeedEstimator(1.0, 1.0)
    seen.observe(Window(1.0, 0.5, 0.0))
    assert seen.need == Need(0.5, pytest.approx(0.465), pytest.approx(0.535), pytest.approx(0.57))


def test_a_guest_that_is_held_back_needs_more_and_at_most_its_own_pace() -> None:
    seen = NeedEstimator(1.0, 1.0)
    seen.observe(Window(0.2, 0.2, 0.5))  # it runs half of the time, and then uses 0.4 of a core
    assert seen.need == Need(pytest.approx(0.43), 0.2, pytest.approx(0.43), pytest.approx(0.43), guessed=True)
    untold = NeedEstimator(1.0, 1.0)
    untold.observe(Window(0.2, 0.2))
    assert untold.need == Need(1.0, 0.2, 1.0, 1.0, guessed=True), "the declared need agrees with what was seen"


def test_a_need_that_was_declared_too_low_is_raised_step_by_step() -> None:
    seen, cap, caps = NeedEstimator(0.1, 1.0), 0.1, []
    while len(caps) < 9:
        caps.append(round(cap, 3))
        seen.observe(window(0.5, cap, told=False))
        cap = seen.need.booked_cores
    assert caps == [0.1, 0.2, 0.4, 0.8, 0.57, 0.57, 0.57, 0.57, 0.57]


def test_a_throttled_guest_gets_more_than_declared_until_its_need_is_known() -> None:
    seen = NeedEstimator(0.5, 1.0)
    seen.observe(window(1.0, 0.4, told=True))  # the declared need agrees, but so does every higher one
    assert seen.need == Need(0.8, 0.4, 1.0, 0.8, guessed=True)
    seen.observe(window(1.0, 0.6, told=True))
    assert seen.need == Need(1.0, 0.6, 1.0, 1.0, guessed=True)


def test_bursts_that_a_quota_throttles_do_not_make_the_cap_smaller_and_smaller() -> None:
    """A program computes for 0.5 s and waits for 0.5 s: the lower its cap, the longer its rounds."""
    seen, cap = NeedEstimator(0.6, 1.0), 0.6
    for _ in range(20):
        round_s = 0.5 / cap + 0.5
        seen.observe(Window(cap, 0.5 / round_s, (0.5 / cap - 0.5) / round_s))
        cap = seen.need.booked_cores
    assert cap >= 0.5


def test_a_need_that_changes_is_found_again() -> None:
    seen = NeedEstimator(0.5, 1.0)
    seen.observe(Window(0.6, 0.5, 0.0))
    seen.observe(Window(0.57, 0.2, 0.0))
    assert seen.need.cores == 0.2
    seen.observe(Window(0.24, 0.24, 0.6))
    assert seen.need.cores >= 0.24
    seen.observe(Window(seen.need.booked_cores, 0.6, 0.0))
    assert seen.need.cores == 0.6


@given(NEEDS, NEEDS, TOLD, st.lists(st.floats(-0.04, 0.04), min_size=12, max_size=12))
@example(need=0.7, declared=1.0, told=False, wrong=[*[-0.04] * 11, 0.04])  # a fast window looks like a higher need
def test_whatever_was_declared_the_need_is_found_under_a_yield_of_1(
    need: float, declared: float, told: bool, wrong: list[float]
) -> None:
    seen, cap = NeedEstimator(declared, 1.0), declared
    for wrong_frac in (*wrong, 0.0, 0.0):
        seen.observe(window(need, cap, told=told, wrong_frac=wrong_frac))
        cap = seen.need.booked_cores
    found = seen.need
    assert abs(found.cores - need) <= 2 * error_of(need)
    assert found.least_cores <= found.cores <= found.most_cores <= 1.0


@given(NEEDS, NEEDS, st.floats(0.1, 1.0), TOLD)
def test_bounds_hold_the_need_whatever_the_caps(need: float, declared: float, yield_frac: float, told: bool) -> None:
    seen, cap = NeedEstimator(declared, 1.0), declared * yield_frac
    for _ in range(8):
        seen.observe(window(need, cap, told=told))
        cap = seen.need.booked_cores * yield_frac
        assert seen.need.least_cores <= need + 1e-9
        assert seen.need.most_cores >= need - 1e-9


@given(st.lists(st.tuples(st.floats(0.001, 8), st.floats(0, 8), st.none() | st.floats(0, 1)), max_size=30))
def test_nonsense_stays_within_what_is_possible(seen: list[tuple[float, float, float | None]]) -> None:
    estimator = NeedEstimator(0.5, 2.0)
    for cap, used, held in seen:
        estimator.observe(Window(cap, used, held))
        need = estimator.need
        assert 0.0 <= need.least_cores <= need.cores <= need.most_cores <= 2.0
        assert need.cores <= need.booked_cores <= 2.0
