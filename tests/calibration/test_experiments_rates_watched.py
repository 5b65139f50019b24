"""Quantities from samples of CPU time, compared with guests whose use is computed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.study.calibration.watched import RESPONSE_WINDOW_S, response_s, window_rates, window_use

PERIOD_S = 0.1
caps = st.floats(0.05, 0.95)
phases = st.floats(0.0, PERIOD_S)


def bursts(t_s, cap_cores, phase_s=0.0):
    """CPU time of a busy guest on one core that uses its whole cap at the begin of each period."""
    t = np.asarray(t_s) + phase_s
    whole = np.floor(t / PERIOD_S)
    return cap_cores * PERIOD_S * whole + np.minimum(t - whole * PERIOD_S, cap_cores * PERIOD_S)


def change(t_s, at_s, before, after):
    """CPU time of a guest that uses `before` cores until `at_s` and `after` then, evenly."""
    t = np.asarray(t_s)
    return before * np.minimum(t, at_s) + after * np.maximum(0.0, t - at_s)


def steps(every_s, for_s):
    return np.arange(round(for_s / every_s) + 1) * every_s


@settings(max_examples=40, deadline=None)
@given(caps, phases, st.sampled_from([0.1, 1.0, 10.0]), st.integers(0, 2**32 - 1))
def test_a_cap_that_holds_in_each_period_has_no_error_but_that_of_late_samples(cap, phase, window_s, seed):
    late_s = 0.002
    t = steps(0.02, 10.5) + np.random.default_rng(seed).uniform(0.0, late_s, 526)
    use = window_use(t, bursts(t, cap, phase), window_s, cap)
    assert use is not None
    assert use.worst_error_cores <= 2 * late_s / window_s  # at each end
    assert use.p95_error_cores <= use.worst_error_cores
    assert abs(use.used_cores - cap) <= use.worst_error_cores + 1e-12


@settings(max_examples=40, deadline=None)
@given(caps, st.floats(-0.5, 0.5))
def test_a_cap_that_is_off_by_a_part_shows_it_in_every_window(cap, off):
    t = steps(0.02, 3.0)
    for window_s in (0.1, 1.0):
        use = window_use(t, t * cap * (1 + off), window_s, cap)
        assert use is not None
        assert use.windows == round((3.0 - window_s) / 0.02) + 1
        assert use.used_cores == pytest.approx(cap * (1 + off))
        assert use.worst_error_cores == pytest.approx(abs(off) * cap, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0.001, 0.5), st.floats(0.0, 4.0)), min_size=1, max_size=60), st.floats(0.01, 2.0))
def test_no_window_is_faster_or_slower_than_all_of_its_parts(parts, window_s):
    t = np.concatenate(([0.0], np.cumsum([dt for dt, _ in parts])))
    cpu = np.concatenate(([0.0], np.cumsum([dt * rate for dt, rate in parts])))
    begins, cores = window_rates(t, cpu, window_s)
    assert len(begins) == len(cores)
    rates = [rate for _, rate in parts]
    for used in cores:
        assert min(rates) - 1e-6 <= used <= max(rates) + 1e-6


def test_windows_that_the_sampler_slept_through_are_left_out():
    t = np.concatenate((steps(0.02, 1.0), 2.0 + steps(0.02, 1.0)))
    begins, cores = window_rates(t, t * 0.5, 0.1)
    assert len(begins) == 2 * 46  # each second but its last 0.1 s
    assert not [begin for begin in begins if 0.9 + 1e-9 < begin < 2.0]
    assert cores == pytest.approx(0.5)


@pytest.mark.parametrize("samples", [0, 1, 2, 5])
def test_samples_of_less_than_a_window_tell_nothing(samples):
    t = steps(0.02, 1.0)[:samples]
    assert window_use(t, t, 0.1, 1.0) is None
    assert response_s(t, t, 0.0, 1.0) is None


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match=r"expected two lists of one length"):
        window_rates([0.0, 1.0], [0.0], 0.1)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([(0.1, 0.6), (0.6, 0.1), (0.2, 0.9), (0.5, 0.25)]), st.floats(0.3, 0.7), st.floats(0.0, 0.6),
    st.none() | st.tuples(st.integers(0, 179), st.floats(-0.05, 0.05)),
)  # fmt: skip
def test_the_response_is_when_the_use_changed_whatever_one_sample_says(pair, begin, delay, bad):
    before, after = pair
    t = steps(0.01, 1.8)
    cpu = change(t, begin + delay, before, after)
    if bad is not None:
        cpu[bad[0]] += bad[1]
    found = response_s(t, cpu, begin, after)
    # a window may contain this much of the old use and still be near the new cap
    before_s = RESPONSE_WINDOW_S * max(0.1 * after, 0.02) / abs(after - before)
    assert found is not None
    assert max(0.0, delay - before_s) - 0.02 <= found <= delay + 0.04


@settings(max_examples=40, deadline=None)
@given(phases, st.floats(0.0, 0.3))
def test_the_response_of_a_guest_that_runs_in_bursts_is_right_to_a_period(phase, delay):
    t = steps(0.01, 2.0)
    at = 0.5 + delay
    before, after = bursts(t, 0.1, phase), bursts(t, 0.6, phase)
    cpu = np.where(t < at, before, after + bursts(at, 0.1, phase) - bursts(at, 0.6, phase))
    found = response_s(t, cpu, 0.5, 0.6)
    assert found is not None
    assert delay - PERIOD_S - 0.02 <= found <= delay + PERIOD_S + 0.02


def test_a_cap_that_is_never_followed_has_no_response():
    t = steps(0.01, 2.0)
    assert response_s(t, t * 0.6, 0.5, 0.1) is None


def test_a_cap_that_is_followed_for_a_moment_only_has_no_response():
    t = steps(0.01, 2.0)
    relapsed = change(t, 0.5, 0.6, 0.1) + np.maximum(0.0, t - 0.9) * 0.5
    assert response_s(t, relapsed, 0.5, 0.1) is None
    # if only samples before the relapse count, the guest followed the cap
    assert response_s(t, relapsed, 0.5, 0.1, until_s=0.9) == pytest.approx(0.0, abs=0.02)


def test_what_comes_after_the_next_change_does_not_count():
    t = steps(0.01, 3.0)
    cpu = change(t, 1.0, 0.1, 0.6) + np.maximum(0.0, t - 2.0) * -0.5
    assert response_s(t, cpu, 1.0, 0.6) is None
    found = response_s(t, cpu, 1.0, 0.6, until_s=2.0)
    assert found is not None
    assert math.isclose(found, 0.0, abs_tol=0.03)
