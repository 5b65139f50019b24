"""A convex solver for capacities: least sum of inverses, by a primal-dual interior point method.

Minimise the sum of f(z) = a / (b + z) under W z <= room and 0 <= z <= upper. With multipliers p of the
capacities, l and u of the bounds, every step is Newton's on f' + W'p - l + u = 0 and on p s = l z = u (upper - z) = mu,
where s is the slack; mu goes to 0. As f is convex, the sum at z exceeds the least one by at most
sum |f' + W'p - l + u| upper + p s + l z + u (upper - z). The solver ends when this bound is small enough.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from testbed.scheduling.compiler import kernel, lean_kernel
from testbed.scheduling.policies.view import Floats

ACCURACY = 1e-7  # proven bound on the excess of the sum at the end, relative to the sum

_STEPS = 100  # the solver takes 10 to 30; every iterate is feasible, so the last one can be used
_INSIDE = 0.99  # largest step, as a part of the way to the nearest bound
_SINGULAR = 1e-200
_HUGE = 1e100


class _Point(NamedTuple):
    """An iterate with K variables and M capacities; everything is positive."""

    z: Floats  # (K,)
    gap: Floats  # (K,) upper - z
    slack: Floats  # (M,)
    price: Floats  # (M,)
    low: Floats  # (K,) multipliers of z >= 0
    high: Floats  # (K,) multipliers of z <= upper


@kernel
def least_sum_of_inverses(weight: Floats, room: Floats, upper: Floats, above: Floats, below: Floats) -> Floats:
    """Return the z (K,) of least sum of `above` / (`below` + z), `weight` (M, K) z <= `room` (M,), 0 <= z <= `upper`.

    All arrays but `weight`, which is not negative, are positive. The sum is within a relative `ACCURACY` of the least.
    """
    capacities, variables = weight.shape
    columns = weight.T.copy()
    total = 0.0
    for j in range(variables):
        total += above[j] / below[j]
    point, change = _first(columns, room, upper, above / total, below), _nothing(capacities, variables)
    force = np.empty(variables)
    stiffness = np.empty(variables)
    matrix = np.empty((variables, variables))
    factor = 0.1
    for _ in range(_STEPS):
        excess, worth, complementary = _certificate(point, columns, upper, above / total, below, force, stiffness)
        if excess <= ACCURACY * worth:
            break
        mu = factor * complementary / (2 * variables + capacities)
        _direction(point, change, weight, force, stiffness, matrix, mu)
        step = _advance(point, change)
        factor = 0.03 if step > 0.9 else 0.3
    return point.z


@kernel
def _nothing(capacities: int, variables: int) -> _Point:
    return _Point(
        np.zeros(variables),
        np.zeros(variables),
        np.zeros(capacities),
        np.zeros(capacities),
        np.zeros(variables),
        np.zeros(variables),
    )


@kernel
def _first(columns: Floats, room: Floats, upper: Floats, above: Floats, below: Floats) -> _Point:
    """Return a point inside all constraints: half of the way to the first one, towards `upper`."""
    variables, capacities = columns.shape
    point = _nothing(capacities, variables)
    share = 1.0
    for i in range(capacities):
        most = 0.0
        for j in range(variables):
            most += columns[j, i] * upper[j]
        if share * most > room[i]:
            share = room[i] / most
        point.slack[i] = room[i]
    share *= 0.5
    mu = 0.0
    for j in range(variables):
        point.z[j] = share * upper[j]
        point.gap[j] = upper[j] - point.z[j]
        mu += above[j] / (below[j] + point.z[j]) / (2 * variables + capacities)
        for i in range(capacities):
            point.slack[i] -= columns[j, i] * point.z[j]
    for j in range(variables):
        point.low[j] = mu / point.z[j]
        point.high[j] = mu / point.gap[j]
    for i in range(capacities):
        point.price[i] = mu / point.slack[i]
    return point


@lean_kernel
def _certificate(
    point: _Point, columns: Floats, upper: Floats, above: Floats, below: Floats, force: Floats, stiffness: Floats
) -> tuple[float, float, float]:
    """Return the bound on the excess, the sum, and the part of the bound that is due to complementarity.

    Set `force` (K,) = f' + W'p and `stiffness` (K,) = f''.
    """
    variables, capacities = columns.shape
    excess = 0.0
    worth = 0.0
    complementary = 0.0
    for i in range(capacities):
        complementary += point.price[i] * point.slack[i]
    for j in range(variables):
        place = below[j] + point.z[j]
        worth += above[j] / place
        force[j] = -above[j] / (place * place)
        stiffness[j] = 2.0 * above[j] / (place * place * place)
        for i in range(capacities):
            force[j] += columns[j, i] * point.price[i]
        complementary += point.low[j] * point.z[j] + point.high[j] * point.gap[j]
        excess += abs(force[j] - point.low[j] + point.high[j]) * upper[j]
    return excess + complementary, worth, complementary


@lean_kernel
def _direction(
    point: _Point, change: _Point, weight: Floats, force: Floats, stiffness: Floats, matrix: Floats, mu: float
) -> None:
    """Set `change` to Newton's step towards a complementarity of `mu`; `matrix` (K, K) is scratch.

    Slacks and multipliers are eliminated. The remaining system has a positive definite matrix:
    (f'' + l/z + u/gap + W' (p/s) W) dz = -force + mu/z - mu/gap - W' (mu/s - p).
    """
    capacities, variables = weight.shape
    matrix[:] = 0.0
    for j in range(variables):
        matrix[j, j] = stiffness[j] + point.low[j] / point.z[j] + point.high[j] / point.gap[j]
        change.z[j] = mu / point.z[j] - mu / point.gap[j] - force[j]
    for i in range(capacities):
        change.price[i] = mu / point.slack[i] - point.price[i]
        for j in range(variables):
            if weight[i, j] != 0.0:
                factor = point.price[i] / point.slack[i] * weight[i, j]
                change.z[j] -= weight[i, j] * change.price[i]
                for other in range(j, variables):
                    matrix[j, other] += factor * weight[i, other]
    _solve(matrix, change.z)
    for i in range(capacities):
        change.slack[i] = 0.0
        for j in range(variables):
            change.slack[i] -= weight[i, j] * change.z[j]
        change.price[i] -= point.price[i] / point.slack[i] * change.slack[i]
    for j in range(variables):
        change.gap[j] = -change.z[j]
        change.low[j] = (mu - point.low[j] * change.z[j]) / point.z[j] - point.low[j]
        change.high[j] = (mu - point.high[j] * change.gap[j]) / point.gap[j] - point.high[j]


@lean_kernel
def _solve(matrix: Floats, vector: Floats) -> None:
    """Solve for `vector` (K,) in place, by Cholesky; the upper half of `matrix` (K, K) is read and overwritten."""
    size = vector.size
    for k in range(size):
        pivot = matrix[k, k]
        # Rounding errors can make a pivot 0 or negative: its variable then does not change in this step.
        root = np.sqrt(pivot) if pivot > _SINGULAR else _HUGE
        for j in range(k, size):
            matrix[k, j] /= root
        for i in range(k + 1, size):
            factor = matrix[k, i]
            if factor != 0.0:
                for j in range(i, size):
                    matrix[i, j] -= factor * matrix[k, j]
        matrix[k, k] = root
        vector[k] /= root
        for j in range(k + 1, size):
            vector[j] -= matrix[k, j] * vector[k]
    for k in range(size - 1, -1, -1):
        rest = vector[k]
        for j in range(k + 1, size):
            rest -= matrix[k, j] * vector[j]
        vector[k] = rest / matrix[k, k]


@lean_kernel
def _advance(point: _Point, change: _Point) -> float:
    """Move `point` along `change` as far as all values stay positive, at most all of it; return the part moved."""
    step = _reach(point.z, change.z, 1.0)
    step = _reach(point.gap, change.gap, step)
    step = _reach(point.slack, change.slack, step)
    step = _reach(point.price, change.price, step)
    step = _reach(point.low, change.low, step)
    step = _reach(point.high, change.high, step)
    _add(point.z, change.z, step)
    _add(point.gap, change.gap, step)
    _add(point.slack, change.slack, step)
    _add(point.price, change.price, step)
    _add(point.low, change.low, step)
    _add(point.high, change.high, step)
    return step


@lean_kernel
def _reach(value: Floats, change: Floats, step: float) -> float:
    for j in range(value.size):
        if value[j] + step * change[j] < (1.0 - _INSIDE) * value[j]:
            step = -_INSIDE * value[j] / change[j]
    return step


@lean_kernel
def _add(value: Floats, change: Floats, step: float) -> None:
    for j in range(value.size):
        value[j] += step * change[j]
