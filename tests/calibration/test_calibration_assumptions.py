"""Verdicts on the papers' assumptions follow one written rule."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.calibration.synthetic_lab import BEGIN, synthetic_trials

from testbed.measure.robust import Interval
from testbed.study.calibration.assumptions import HELD_FRAC, WITHIN_FRAC, verdict_on
from testbed.study.calibration.from_trials import calibrate_from
from testbed.study.calibration.trials import Outcome, Trials

NAN = math.nan


@pytest.mark.parametrize(
    ("offs", "verdict", "bound"),
    [
        ([], "not measured", NAN),
        ([Interval(0.0, -0.02, 0.02)], "held", 0.02),
        ([Interval(0.0, -0.01, 0.01), Interval(0.03, 0.02, 0.04)], "within", 0.04),
        ([Interval(0.0, -0.01, 0.01), Interval(-0.2, -0.3, -0.11)], "broken", 0.3),
        ([Interval(0.09, 0.05, 0.14)], "undecided", 0.14),
        ([Interval(0.0, -0.5, 0.5)], "undecided", 0.5),
        ([Interval(0.0, NAN, NAN)], "undecided", NAN),
        ([Interval(0.0, -0.01, 0.01), Interval(0.0, NAN, NAN)], "undecided", 0.01),
        ([Interval(0.5, 0.4, 0.6), Interval(0.0, NAN, NAN)], "broken", 0.6),
    ],
)
def test_the_rule(offs, verdict, bound):
    found, within = verdict_on(offs)
    assert found == verdict
    assert within == pytest.approx(bound, nan_ok=True)


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(0, 1)), min_size=1, max_size=6))
def test_verdicts_agree_with_their_bounds(pairs):
    offs = [Interval(value, value - half, value + half) for value, half in pairs]
    verdict, bound = verdict_on(offs)
    assert all(-bound <= off.low <= off.high <= bound for off in offs)
    assert (verdict == "held") == (bound <= HELD_FRAC)
    assert (verdict == "within") == (HELD_FRAC < bound <= WITHIN_FRAC)
    wholly_beyond = any(off.low > WITHIN_FRAC or off.high < -WITHIN_FRAC for off in offs)
    assert (verdict == "broken") == wholly_beyond
    mirrored = [Interval(-off.value, -off.high, -off.low) for off in offs]
    assert verdict_on(mirrored) == (verdict, bound)


def verdicts(experiment, conditions_and_observations, blocks=6):
    """Judge trials of one experiment, with a tiny difference between blocks."""
    outcomes = [
        Outcome(
            trial=100 * block + index,
            experiment=experiment,
            block=block,
            condition=condition,
            observations=({**{name: value * (1 + 1e-4 * block) for name, value in numbers.items()}, **labels},),
        )
        for block in range(blocks)
        for index, (condition, numbers, labels) in enumerate(conditions_and_observations)
    ]
    return calibrate_from(Trials(BEGIN, outcomes)).assumptions


def saved(penalties_s):
    """Penalties by memory."""
    under = {"storage": "disk", "cache": "warm", "concurrent": 1, "touched_frac": 1.0}
    return [({**under, "memory_mib": mib}, {"penalty_s": penalty_s}, {}) for mib, penalty_s in penalties_s.items()]


def test_the_penalty_is_compared_with_five_minutes():
    found = verdicts("save-restore", saved({128: 300.0, 1024: 301.0}))
    assert found["penalty"].verdict == "held"
    assert found["memory_independence"].verdict == "held"
    fast = verdicts("save-restore", saved({128: 1.0, 1024: 5.0}))
    assert fast["penalty"].verdict == "broken"
    assert "1/300 of 300 s" in fast["penalty"].found
    assert "128 MiB" in fast["penalty"].found
    assert fast["memory_independence"].verdict == "broken"
    assert "1024 MiB cost 5 (" in fast["memory_independence"].found
    assert fast["memory_independence"].within_frac == pytest.approx(4.0, abs=0.1)
    assert fast["linearity"].verdict == "not measured"


def test_one_memory_size_says_nothing_of_its_influence():
    assert verdicts("save-restore", saved({128: 1.0}))["memory_independence"].verdict == "not measured"


def test_progress_is_judged_relative_to_the_yield():
    condition = {"kind": "parallel", "tasks": 2}
    within = [
        (condition, {"relative_rate": 0.53}, {"yield_frac": 0.5}),
        (condition, {"relative_rate": 1.0}, {"yield_frac": 1.0}),
    ]
    found = verdicts("proportionality", within)["linearity"]
    assert found.verdict == "within"
    assert found.within_frac == pytest.approx(0.06, abs=0.005)
    assert "progress 0.53" in found.found
    broken = verdicts("proportionality", [(condition, {"relative_rate": 0.13}, {"yield_frac": 0.1})])["linearity"]
    assert broken.verdict == "broken"  # 3 points, yet 30 % more than its yield


def test_isolation_caps_and_starts_are_judged():
    alone = ({"cap_frac": 0.25, "neighbours": 0}, {"relative_rate": 1.0}, {})
    crowded = ({"cap_frac": 0.25, "neighbours": 3}, {"relative_rate": 0.95}, {})
    assert verdicts("isolation", [alone])["isolation"].verdict == "not measured"
    isolated = verdicts("isolation", [alone, crowded])["isolation"]
    assert isolated.verdict == "within"
    assert "neighbours 3" in isolated.found
    cap = {"cap_frac": 0.5, "vcpus": 1}
    windows = [
        (cap, {"used_cores": used}, {"window_s": window, "requested_cores": 0.5})
        for window, used in ((0.1, 0.8), (10.0, 0.505))
    ]
    assert verdicts("cap-accuracy", windows)["cap_accuracy"].verdict == "held"  # the longest windows decide
    start = {"memory_mib": 128, "tasks": 1, "concurrent": 1}
    assert verdicts("start", [(start, {"ready_s": 0.15}, {})])["free_start"].verdict == "held"
    slow = verdicts("start", [(start, {"ready_s": 4.0}, {})])["free_start"]
    assert slow.verdict == "broken"
    assert "4 s" in slow.found


def test_one_trial_decides_nothing():
    found = verdicts("start", [({"memory_mib": 128, "tasks": 1}, {"ready_s": 4.0}, {})], blocks=1)["free_start"]
    assert found.verdict == "undecided"
    assert "Too few trials" in found.found


def test_every_assumption_has_a_statement_a_source_and_figures():
    found = calibrate_from(
        synthetic_trials(3, only=("save-restore", "proportionality", "isolation", "cap-accuracy", "start"))
    )
    assert set(found.assumptions) == {
        "penalty", "memory_independence", "linearity", "isolation", "cap_accuracy", "free_start",
    }  # fmt: skip
    for one in found.assumptions.values():
        assert one.source.startswith("[RR ")
        assert one.statement.endswith(".")
        assert one.verdict != "not measured"
        assert any(character.isdigit() for character in one.found)
