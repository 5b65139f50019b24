"""The small simplex solver against a large one."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from testbed.scheduling.compiler import compiled
from testbed.scheduling.policies.simplex import maximise_sum


def check(weight, room, upper, solve=maximise_sum):
    z = solve(weight, room, upper)
    exact = linprog(-np.ones(upper.size), A_ub=weight, b_ub=room, bounds=np.c_[np.zeros(upper.size), upper])
    assert (z >= 0).all()
    assert (z <= upper).all()
    assert (weight @ z <= room + 1e-10).all()
    assert z.sum() == pytest.approx(-exact.fun, abs=1e-8)
    return z


@pytest.mark.parametrize("density", [0.02, 0.05, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_large_programs(seed, density):
    rng = np.random.default_rng(seed)
    weight = (rng.random((128, 200)) < density) * rng.choice([0.1, 0.25, 0.5, 1.0], 200)
    check(weight, rng.uniform(0.01, 0.9, 128), rng.uniform(0.3, 1.0, 200), compiled(maximise_sum))


def test_degenerate_programs():
    """Equal columns, rows and right-hand sides give ties everywhere, capacities of 0 give steps of length 0."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        capacities, variables = rng.integers(1, 9), rng.integers(1, 12)
        weight = rng.integers(0, 3, (capacities, variables)).astype(np.float64)
        weight[rng.integers(capacities)] = weight[0]
        room = rng.integers(0, 3, capacities).astype(np.float64)
        upper = rng.integers(0, 2, variables) + 0.5
        z = check(weight, room, upper)
        assert z.tobytes() == compiled(maximise_sum)(weight, room, upper).tobytes()


def test_without_capacities_all_go_to_their_bounds():
    assert maximise_sum(np.zeros((0, 2)), np.zeros(0), np.array([0.5, 0.25])).tolist() == [0.5, 0.25]
