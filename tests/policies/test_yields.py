"""Max-min yields: the bottleneck property proves them, a linear program their minimum."""

from __future__ import annotations

from itertools import chain

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from testbed.policies.capacity import offsets
from testbed.policies.view import NOT_PLACED
from testbed.policies.yields import max_min_yields

TINY = 1e-8


@st.composite
def maps(draw):
    nodes = draw(st.integers(1, 6))
    jobs = draw(
        st.lists(
            st.tuples(
                st.lists(st.integers(0, nodes - 1), min_size=1, max_size=8),
                st.sampled_from([0.05, 0.1, 0.25, 1 / 3, 0.5, 0.9, 1.0]),
                st.booleans(),
            ),
            max_size=12,
        )
    )
    return nodes, jobs


@settings(max_examples=200)
@given(maps())
def test_yields_are_max_min_fair(case):
    nodes, jobs = case
    tasks = np.array([len(places) for places, _, _ in jobs], dtype=np.int64)
    need = np.array([cpu for _, cpu, _ in jobs], dtype=np.float64)
    flat = [*chain(*(p if runs else [NOT_PLACED] * len(p) for p, _, runs in jobs))]
    yields = max_min_yields(offsets(tasks), need, np.array(flat, dtype=np.int64), nodes)

    weight = np.zeros((nodes, len(jobs)))  # CPU need of each job on each node
    for row, (places, cpu, runs) in enumerate(jobs):
        for node in places if runs else ():
            weight[node, row] += cpu
    runs = np.array([r for _, _, r in jobs], dtype=np.bool_)
    used = weight @ yields
    assert (yields[~runs] == 0).all()
    assert (yields[runs] > 0).all()
    assert (yields <= 1).all()
    assert (used <= 1 + 1e-9).all()
    for row in np.flatnonzero(runs & (yields < 1)):
        # A node is its bottleneck: full, and nobody there has more.
        assert any(
            used[node] >= 1 - TINY and yields[row] >= yields[weight[node] > 0].max() - TINY
            for node in np.flatnonzero(weight[:, row])
        )
    if runs.any():
        assert np.isclose(yields[runs].min(), 1 / max(1.0, weight[:, runs].sum(axis=1).max()))


@settings(max_examples=30)
@given(maps())
def test_no_yields_are_lexicographically_larger(case):
    """Level after level a linear program finds the same minimum of the jobs that can still grow."""
    nodes, jobs = case
    tasks = np.array([len(places) for places, _, _ in jobs], dtype=np.int64)
    need = np.array([cpu for _, cpu, _ in jobs], dtype=np.float64)
    flat = np.array([*chain(*(p for p, _, _ in jobs))], dtype=np.int64)
    yields = max_min_yields(offsets(tasks), need, flat, nodes)
    weight = np.zeros((nodes, len(jobs)))
    for row, (places, cpu, _) in enumerate(jobs):
        np.add.at(weight[:, row], places, cpu)

    open_ = np.ones(len(jobs), dtype=np.bool_)
    while open_.any():
        # Variable: the common level of the open jobs; fixed ones use what they were found to have.
        level = linprog(
            [-1.0],
            A_ub=weight[:, open_].sum(axis=1)[:, None],
            b_ub=1 - weight[:, ~open_] @ yields[~open_] + 1e-12,
            bounds=[(0, 1)],
        ).x[0]
        lowest = yields[open_].min()
        assert np.isclose(lowest, level, atol=1e-7)
        open_ &= yields > lowest + 1e-7


def test_by_hand():
    # Node 0 holds A and B, node 1 B and C, all of need 1: A and B get a half, so does C; D alone gets all.
    flat = np.array([0, 0, 1, 1, 2])
    yields = max_min_yields(np.array([0, 1, 3, 4, 5]), np.ones(4), flat, 3)
    assert yields.tolist() == [0.5, 0.5, 0.5, 1.0]
    # B, of need 0.2, has a task beside A and one beside C: both nodes carry 1.2.
    yields = max_min_yields(np.array([0, 1, 3, 4]), np.array([1.0, 0.2, 1.0]), np.array([0, 0, 1, 1]), 2)
    assert np.allclose(yields, 1 / 1.2)
    # Three on node 0, one of them also on node 1 with D: D gets what a third leaves.
    yields = max_min_yields(np.array([0, 1, 2, 4, 5]), np.ones(4), np.array([0, 0, 0, 1, 1]), 2)
    assert np.allclose(yields, [1 / 3, 1 / 3, 1 / 3, 2 / 3])
