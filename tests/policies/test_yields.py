"""Yields: the bottleneck property proves the max-min ones, linear programs all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.optimize import linprog
from support.policies.placed_jobs import copied, placed, placements, weights

from testbed.scheduling.compiler import compiled
from testbed.scheduling.policies.yields import average_yields, max_min_yields, raise_cheapest_first

TINY = 1e-8


def least(weight):
    return 1 / max(1.0, weight.sum(axis=1).max(initial=0.0))


def check_feasible(cluster, weight):
    yields, runs = cluster.yield_frac, cluster.running
    assert (yields[~runs] == 0).all()
    assert (yields <= 1).all()
    assert (yields[runs] >= least(weight) - 1e-12).all()
    assert (weight @ yields <= 1 + 1e-9).all()


def can_rise(cluster, weight):
    """Return which running jobs are below 1 and have CPU left on all their nodes."""
    room = weight @ cluster.yield_frac < 1 - TINY
    rows = np.flatnonzero(cluster.running & (cluster.yield_frac < 1 - TINY))
    return [row for row in rows if room[weight[:, row] > 0].all()]


@settings(max_examples=80)
@given(placements())
def test_max_min_yields_have_a_bottleneck_each(case):
    active, jobs, cluster = case
    max_min_yields(*case)
    weight, yields = weights(jobs, cluster), cluster.yield_frac
    check_feasible(cluster, weight)
    used = weight @ yields
    for row in active[cluster.running & (yields < 1)]:
        # A node is its bottleneck: full, and no job there has a higher yield.
        assert any(
            used[node] >= 1 - TINY and yields[row] >= yields[weight[node] > 0].max() - TINY
            for node in np.flatnonzero(weight[:, row])
        )
    if cluster.running.any():
        assert np.isclose(yields[cluster.running].min(), least(weight))


@settings(max_examples=30)
@given(placements())
def test_no_yields_are_lexicographically_larger(case):
    """At each level, a linear program finds the same minimum of the jobs that can still grow."""
    _, jobs, cluster = case
    max_min_yields(*case)
    weight, yields = weights(jobs, cluster), cluster.yield_frac
    open_ = cluster.running.copy()
    while open_.any():
        # Variable: the common level of the open jobs; fixed jobs use their final yields.
        level = linprog(
            [-1.0],
            A_ub=weight[:, open_].sum(axis=1)[:, None],
            b_ub=1 - weight[:, ~open_] @ yields[~open_] + 1e-12,
            bounds=[(0, 1)],
        ).x[0]
        lowest = yields[open_].min()
        assert np.isclose(lowest, level, atol=1e-7)
        open_ &= yields > lowest + 1e-7


@settings(max_examples=80)
@given(placements())
def test_average_yields_solve_the_linear_program(case):
    _, jobs, cluster = case
    average_yields(*case)
    weight = weights(jobs, cluster)
    check_feasible(cluster, weight)
    runs = cluster.running
    if runs.any():
        exact = linprog(
            -np.ones(runs.sum()),
            A_ub=weight[:, runs],
            b_ub=np.ones(weight.shape[0]),
            bounds=(least(weight) - 1e-12, 1),
            method="highs",
        )
        assert cluster.yield_frac.sum() == pytest.approx(-exact.fun, abs=1e-7)


@settings(max_examples=50)
@given(placements())
def test_the_cheapest_job_rises_first(case):
    """The least-need heuristic gives job after job all that is free, and then no job can rise."""
    active, jobs, cluster = case
    raise_cheapest_first(*case)
    weight = weights(jobs, cluster)
    check_feasible(cluster, weight)
    assert not can_rise(cluster, weight)
    total = (jobs.offset[1:] - jobs.offset[:-1]) * jobs.cpu_need_frac
    reference = np.where(cluster.running, least(weight), 0.0)
    for row in sorted(active[cluster.running], key=lambda row: (total[row], row)):
        nodes = weight[:, row] > 0
        room = ((1 - weight @ reference)[nodes] / weight[nodes, row]).min()
        reference[row] = min(1.0, reference[row] + max(0.0, room))
    assert np.allclose(cluster.yield_frac, reference, atol=1e-8)


def run(kernel, nodes, *jobs):
    case = placed(nodes, [(places, need, True, 0.0) for places, need in jobs])
    kernel(*case)
    return case[2].yield_frac


def test_by_hand():
    # Node 0 holds A and B, node 1 B and C, all of need 1: A and B get a half, so does C; D alone gets all.
    assert run(max_min_yields, 3, ([0], 1.0), ([0, 1], 1.0), ([1], 1.0), ([2], 1.0)).tolist() == [0.5, 0.5, 0.5, 1.0]
    # B, of need 0.2, has a task beside A and one beside C: both nodes carry 1.2.
    assert np.allclose(run(max_min_yields, 2, ([0], 1.0), ([0, 1], 0.2), ([1], 1.0)), 1 / 1.2)
    # Three on node 0, one of them also on node 1 with D: D gets what a third leaves.
    shared = (([0], 1.0), ([0], 1.0), ([0, 1], 1.0), ([1], 1.0))
    assert np.allclose(run(max_min_yields, 2, *shared), [1 / 3, 1 / 3, 1 / 3, 2 / 3])
    # Ten tasks of 0.1 fill a node: rounding is no overload.
    assert run(max_min_yields, 1, *[([0], 0.1)] * 10).tolist() == [1.0] * 10


def test_the_heuristic_is_not_the_optimum():
    # Node 3 makes the minimum a half, which leaves 0.25 on node 0. A has the least total need, but B, whose second
    # task is on a node with enough CPU, needs less on node 0.
    jobs = [([0], 0.5), ([0, 1], 0.3), ([0], 0.7), ([3], 1.0), ([3], 1.0)]
    assert run(raise_cheapest_first, 4, *jobs) == pytest.approx([1.0, 0.5, 0.5, 0.5, 0.5])
    assert run(average_yields, 4, *jobs) == pytest.approx([0.7, 1.0, 0.5, 0.5, 0.5])


def test_rows_that_are_not_active_are_neither_read_nor_written():
    _, jobs, cluster = placed(1, [([0], 1.0, True, 0.0)] * 3)
    for kernel in (max_min_yields, average_yields, raise_cheapest_first):
        cluster.yield_frac[:] = 0.125
        kernel(np.array([0, 2]), jobs, cluster)
        assert cluster.yield_frac.tolist() == [0.5, 0.125, 0.5]


@pytest.mark.parametrize("kernel", [max_min_yields, average_yields, raise_cheapest_first])
def test_compiled_yields_are_the_same_bits(kernel):
    @settings(max_examples=40)
    @given(placements(most_nodes=12, most_jobs=40, most_tasks=12))
    def agree(case):
        active, jobs, cluster = case
        other = copied(cluster)
        kernel(active, jobs, cluster)
        compiled(kernel)(active, jobs, other)
        assert cluster.yield_frac.tobytes() == other.yield_frac.tobytes()

    agree()
