"""Trials: their order, and the remaining ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.study.calibration.plan import left, plan
from testbed.study.calibration.trials import Outcome

conditions = st.dictionaries(
    st.sampled_from(["save-restore", "start", "bus"]),
    st.lists(st.integers(0, 20), min_size=1, max_size=6, unique=True).map(
        lambda sizes: [{"memory_mib": size} for size in sizes]
    ),
    min_size=1,
)


def outcome(trial, error=None):
    return Outcome(trial=1, experiment=trial.experiment, block=trial.block, condition=trial.condition, error=error)


@given(conditions, st.integers(1, 5), st.integers(0, 3))
def test_every_block_has_every_condition_once(conditions, blocks, seed):
    trials = plan(conditions, blocks, seed)
    pairs = sorted((name, c["memory_mib"]) for name, some in conditions.items() for c in some)
    assert len(trials) == len(pairs) * blocks
    for block in range(blocks):
        mine = trials[block * len(pairs) : (block + 1) * len(pairs)]
        assert {trial.block for trial in mine} == {block}
        assert sorted((trial.experiment, trial.condition["memory_mib"]) for trial in mine) == pairs
    assert trials == plan(conditions, blocks, seed)


def test_blocks_and_seeds_have_orders_of_their_own():
    many = {"start": [{"memory_mib": size} for size in range(12)]}
    orders = {
        tuple(trial.condition["memory_mib"] for trial in plan(many, 3, seed) if trial.block == block)
        for seed in range(3)
        for block in range(3)
    }
    assert len(orders) == 9


@given(conditions, st.data())
def test_what_is_left_is_what_was_not_done_well(conditions, data):
    trials = plan(conditions, 2, 0)
    fates = data.draw(st.lists(st.sampled_from(["done", "failed", None]), min_size=len(trials), max_size=len(trials)))
    outcomes = [
        outcome(trial, "broken" if fate == "failed" else None)
        for trial, fate in zip(trials, fates, strict=True)
        if fate is not None
    ]
    assert left(trials, outcomes) == [t for t, fate in zip(trials, fates, strict=True) if fate != "done"]
    assert left(trials, outcomes, again=False) == [t for t, fate in zip(trials, fates, strict=True) if fate is None]


def test_a_condition_that_is_there_twice_is_refused():
    with pytest.raises(ValueError, match="start: a condition is there twice"):
        plan({"start": [{"memory_mib": 1}, {"memory_mib": 1}]}, 2, 0)
