"""Yields of /stretch-per: linear programs and a general convex solver give the same results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.optimize import linprog, minimize
from support.policies.placed_jobs import NOW_S, copied, placed, placements, weights

from testbed.scheduling.compiler import compiled
from testbed.scheduling.policies.barrier import ACCURACY, least_sum_of_inverses
from testbed.scheduling.policies.stretch import LEAST_YIELD_FRAC, stretch_yields, yield_for

PERIOD_S = 600.0


def inverse_stretch(jobs, cluster, yields):
    ahead_s = NOW_S - jobs.submit_time_s + PERIOD_S
    return (cluster.virtual_time_s + yields * PERIOD_S) / ahead_s


def best_minimum(jobs, cluster, weight):
    """Return the largest x such that clamp(yield for x, least, no upper bound) fits, and no yield is above 1."""
    low, high = 0.0, 1.0
    for _ in range(60):
        x = (low + high) / 2
        wanted = needed_for(x, jobs, cluster)
        fits = (wanted <= 1).all() and (weight @ wanted <= 1 + 1e-12).all()
        low, high = (x, high) if fits else (low, x)
    return low


def needed_for(x, jobs, cluster):
    flow_s = NOW_S - jobs.submit_time_s
    wanted = [
        max(LEAST_YIELD_FRAC, yield_for(x, *past, PERIOD_S)) if runs else 0.0
        for runs, *past in zip(cluster.running, flow_s, cluster.virtual_time_s, strict=True)
    ]
    return np.array(wanted)


def check_feasible(cluster, weight):
    yields, runs = cluster.yield_frac, cluster.running
    assert (yields[~runs] == 0).all()
    assert (yields <= 1).all()
    assert (yields[runs] >= LEAST_YIELD_FRAC).all()
    assert (weight @ yields <= 1 + 1e-9).all()


def test_the_equation():
    # 100 s old, 50 s of virtual time; at the next pass, 300 s on, 150 s of 400 s: a stretch of 400 / 150.
    y = yield_for(150 / 400, 100.0, 50.0, 300.0)
    assert y == pytest.approx(100 / 300)
    assert (100 + 300) / (50 + y * 300) == pytest.approx(400 / 150)
    assert yield_for(0.01, 100.0, 50.0, 300.0) == 0.0
    assert yield_for(1.0, 100.0, 50.0, 300.0) > 1.0


@settings(max_examples=80)
@given(placements())
def test_the_stretch_is_max_min_fair(case):
    """A job below yield 1 has a full node on which no job above the least yield has a better stretch."""
    active, jobs, cluster = case
    stretch_yields(*case, NOW_S, PERIOD_S, average=False)
    weight, yields = weights(jobs, cluster), cluster.yield_frac
    check_feasible(cluster, weight)
    used = weight @ yields
    x = inverse_stretch(jobs, cluster, yields)
    for row in active[cluster.running & (yields < 1)]:
        assert any(
            used[node] >= 1 - 1e-8
            and x[row] >= x[(weight[node] > 0) & (yields > LEAST_YIELD_FRAC)].max(initial=0.0) - 1e-8
            for node in np.flatnonzero(weight[:, row])
        )


@settings(max_examples=40)
@given(placements())
def test_the_largest_stretch_is_least(case):
    """A bisection and an independent linear program find the same smallest x."""
    _, jobs, cluster = case
    weight, runs = weights(jobs, cluster), cluster.running
    if not runs.any():
        return
    stretch_yields(*case, NOW_S, PERIOD_S, average=False)
    x = inverse_stretch(jobs, cluster, cluster.yield_frac)[runs].min()
    slope = PERIOD_S / (NOW_S - jobs.submit_time_s + PERIOD_S)
    count = runs.sum()
    program = linprog(
        np.r_[np.zeros(count), -1.0],
        A_ub=np.block(
            [
                [weight[:, runs], np.zeros((weight.shape[0], 1))],
                [-np.diag(slope[runs]), np.ones((count, 1))],
            ]
        ),
        b_ub=np.r_[np.ones(weight.shape[0]), inverse_stretch(jobs, cluster, np.zeros(runs.size))[runs]],
        bounds=[(LEAST_YIELD_FRAC, 1)] * count + [(0, 2)],
    )
    assert x == pytest.approx(-program.fun, abs=1e-7)
    assert x == pytest.approx(min(1.0, best_minimum(jobs, cluster, weight)), abs=1e-7)


@settings(max_examples=30, deadline=None)
@given(placements(most_nodes=4, most_jobs=7))
def test_the_average_stretch_is_least(case):
    _, jobs, cluster = case
    runs = cluster.running
    if not runs.any():
        return
    weight = weights(jobs, cluster)
    stretch_yields(*case, NOW_S, PERIOD_S, average=True)
    check_feasible(cluster, weight)
    least = needed_for(best_minimum(jobs, cluster, weight), jobs, cluster)[runs]
    assert (cluster.yield_frac[runs] >= least - 1e-7).all()

    def average(yields):
        return float(np.mean(1 / inverse_stretch(jobs, cluster, spread(yields))[runs]))

    def slope(yields):
        ahead_s = (NOW_S - jobs.submit_time_s + PERIOD_S)[runs]
        return -ahead_s * PERIOD_S / (cluster.virtual_time_s[runs] + yields * PERIOD_S) ** 2 / runs.sum()

    def spread(yields):
        full = np.zeros(runs.size)
        full[runs] = yields
        return full

    mine = average(cluster.yield_frac[runs])
    reference = minimize(
        lambda yields: average(yields) / mine,
        least,
        jac=lambda yields: slope(yields) / mine,
        bounds=[(low, 1) for low in np.minimum(least, 1)],
        constraints={"type": "ineq", "fun": lambda y: 1 - weight[:, runs] @ y, "jac": lambda _: -weight[:, runs]},
        method="SLSQP",
        options={"maxiter": 300, "ftol": 1e-12},
    )
    found = np.clip(reference.x, least, 1)
    if (weight[:, runs] @ found <= 1 + 1e-8).all():
        assert mine <= average(found) * (1 + 2e-7)
    if reference.success:
        assert mine == pytest.approx(average(found), rel=1e-5)
    # No job can rise any more.
    room = weight @ cluster.yield_frac < 1 - 1e-8
    for row in np.flatnonzero(runs & (cluster.yield_frac < 1 - 1e-8)):
        assert not room[weight[:, row] > 0].all()


def test_by_hand():
    # Two new jobs share a node: a half each, whatever is optimised.
    active, jobs, cluster = placed(1, [([0], 1.0, True, 0.0)] * 3)
    jobs.submit_time_s[1:] = NOW_S
    for average in (False, True):
        stretch_yields(active[1:], jobs, cluster, NOW_S, PERIOD_S, average)
        assert cluster.yield_frac[1:] == pytest.approx([0.5, 0.5], abs=1e-6)
    # A job with a full yield in the past has a better stretch than both can reach: it gets the least yield.
    cluster.virtual_time_s[0] = NOW_S
    for average in (False, True):
        stretch_yields(active, jobs, cluster, NOW_S, PERIOD_S, average)
        assert cluster.yield_frac == pytest.approx([0.01, 0.495, 0.495], abs=1e-6)
    # With a single new one, y, both come to x = y = (10000 + 600 (1 - y)) / 10600.
    for average in (False, True):
        stretch_yields(active[:2], jobs, cluster, NOW_S, PERIOD_S, average)
        assert cluster.yield_frac[:2] == pytest.approx([600 / 11200, 10600 / 11200], abs=1e-6)


def test_an_absurdly_crowded_node_still_serves_all():
    active, jobs, cluster = placed(1, [([0] * 50, 1.0, True, 1.0)] * 5)
    for average in (False, True):
        stretch_yields(active, jobs, cluster, NOW_S, PERIOD_S, average)
        assert cluster.yield_frac == pytest.approx([1 / 250] * 5)


def test_the_solver_keeps_its_accuracy_on_a_large_instance():
    """The multipliers that a linear program gives at the answer prove it: f is above its tangent."""
    rng = np.random.default_rng(5)
    weight = (rng.random((30, 50)) < 0.15) * rng.choice([0.1, 0.25, 1.0], 50)
    room, upper = rng.uniform(0.01, 0.9, 30), rng.uniform(0.3, 1.0, 50)
    above, below = rng.uniform(1, 1000, 50), rng.uniform(0.01, 100, 50)
    z = least_sum_of_inverses(weight, room, upper, above, below)
    assert (z > 0).all()
    assert (z < upper).all()
    assert (weight @ z < room).all()
    slope = -above / (below + z) ** 2
    lowest = linprog(slope, A_ub=weight, b_ub=room, bounds=np.c_[np.zeros(50), upper])
    total = (above / (below + z)).sum()
    assert slope @ z - lowest.fun <= ACCURACY * total * 1.001


@pytest.mark.parametrize("average", [False, True])
def test_compiled_yields_are_the_same_bits(average):
    @settings(max_examples=20, deadline=None)
    @given(placements(most_nodes=8, most_jobs=20))
    def agree(case):
        active, jobs, cluster = case
        other = copied(cluster)
        stretch_yields(active, jobs, cluster, NOW_S, PERIOD_S, average)
        compiled(stretch_yields)(active, jobs, other, NOW_S, PERIOD_S, average)
        assert cluster.yield_frac.tobytes() == other.yield_frac.tobytes()

    agree()
