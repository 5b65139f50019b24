"""A small exact solver for packing programs: maximise a sum of bounded variables under capacities.

The primal simplex method with bounded variables on a condensed tableau (Dantzig; the upper bounds cost no rows). The
origin is feasible, so the method needs no first phase, and every step stays feasible. Zeros of the pivot row and
column are skipped, so that parts of the program that share no capacity do not slow each other down.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from testbed.scheduling.compiler import kernel, lean_kernel
from testbed.scheduling.policies.state import Mask
from testbed.scheduling.policies.view import Floats, Ints

_TINY = 1e-10  # gains and pivots below this count as rounding errors
_STILL = 1e-13  # a step this short counts as no progress
_STEPS_PER_VARIABLE = 50  # far more than needed; ends cycles that rounding errors might cause


class _Basis(NamedTuple):
    """A vertex: of K variables (0 ... K - 1) and M slacks (K ...) M are basic; the others, outside, are at a bound."""

    table: Floats  # (M, K): by how much each basic variable falls as each outside one rises
    gain: Floats  # (K,) by how much the sum rises with each outside variable
    value: Floats  # (M,) of the basic variables
    basic: Ints  # (M,)
    outside: Ints  # (K,)
    at_upper: Mask  # (K,) whether the outside variable is at its upper bound
    bound: Floats  # (K + M,) upper bounds
    scale: Floats  # (K + M,) 1 / length of the edge along which a variable rises, at the origin


@kernel
def maximise_sum(weight: Floats, room: Floats, upper: Floats) -> Floats:
    """Return the z (K,) of largest sum with `weight` (M, K) z <= `room` (M,), 0 <= z <= `upper` (K,); all inputs >= 0.

    The variable with the most gain per length of its edge enters, the first one at ties. Lengths are those at the
    origin, as updated lengths cost more time than the steps that they save. After more steps without progress than
    there are variables and slacks, Bland's rule, which cannot cycle, applies until there is progress.
    """
    capacities, variables = weight.shape
    basis = _origin(weight, room, upper)
    used = np.empty(variables, dtype=np.int64)
    still = 0
    for _ in range(_STEPS_PER_VARIABLE * (variables + capacities)):
        bland = still > variables + capacities
        column = _entering(basis, bland)
        if column < 0:
            break
        sign = -1.0 if basis.at_upper[column] else 1.0
        row, step = _leaving(basis, column, sign, bland)
        width = basis.bound[basis.outside[column]]
        flips = width <= step
        step = min(step, width)
        still = 0 if step > _STILL else still + 1
        for i in range(capacities):
            if basis.table[i, column] != 0.0:
                basis.value[i] -= basis.table[i, column] * sign * step
        if flips:
            basis.at_upper[column] = not basis.at_upper[column]
        else:
            basis.value[row] = width - step if basis.at_upper[column] else step
            basis.at_upper[column] = basis.table[row, column] * sign < 0.0
            basis.basic[row], basis.outside[column] = basis.outside[column], basis.basic[row]
            _pivot(basis.table, basis.gain, row, column, used)
    return _solution(basis, variables)


@kernel
def _origin(weight: Floats, room: Floats, upper: Floats) -> _Basis:
    """Return the vertex at which all variables are 0 and the slacks basic."""
    capacities, variables = weight.shape
    bound = np.full(variables + capacities, np.inf)
    scale = np.ones(variables + capacities)
    for j in range(variables):
        bound[j] = upper[j]
        for i in range(capacities):
            scale[j] += weight[i, j] * weight[i, j]
        scale[j] = 1.0 / np.sqrt(scale[j])
    slacks = np.arange(variables, variables + capacities)
    at_upper = np.zeros(variables, dtype=np.bool_)
    return _Basis(weight.copy(), np.ones(variables), room.copy(), slacks, np.arange(variables), at_upper, bound, scale)


@kernel
def _solution(basis: _Basis, variables: int) -> Floats:
    """Return the values (K,) of the variables at a vertex."""
    result = np.zeros(variables)
    for j in range(variables):
        if basis.outside[j] < variables and basis.at_upper[j]:
            result[basis.outside[j]] = basis.bound[basis.outside[j]]
    for i in range(basis.value.size):
        if basis.basic[i] < variables:
            result[basis.basic[i]] = min(max(basis.value[i], 0.0), basis.bound[basis.basic[i]])
    return result


@lean_kernel
def _entering(basis: _Basis, bland: bool) -> int:
    """Return the column of a variable that increases the sum as it leaves its bound, -1 at the optimum."""
    column = -1
    best = 0.0
    for j in range(basis.gain.size):
        slope = -basis.gain[j] if basis.at_upper[j] else basis.gain[j]
        if slope > _TINY:
            score = 1.0 / (1.0 + basis.outside[j]) if bland else slope * basis.scale[basis.outside[j]]
            if score > best:
                column = j
                best = score
    return column


@lean_kernel
def _leaving(basis: _Basis, column: int, sign: float, bland: bool) -> tuple[int, float]:
    """Return the row of the basic variable that first reaches a bound, and the step there; -1 and inf if none does.

    At ties the variable with the largest pivot leaves, for accuracy; under Bland's rule the first variable.
    """
    row = -1
    step = np.inf
    for i in range(basis.value.size):
        rate = basis.table[i, column] * sign
        distance = basis.value[i] if rate > 0.0 else basis.bound[basis.basic[i]] - basis.value[i]
        if abs(rate) <= _TINY or distance == np.inf:
            continue
        length = max(0.0, distance) / abs(rate)
        if abs(length - step) <= _STILL:
            better = basis.basic[i] < basis.basic[row] if bland else abs(rate) > abs(basis.table[row, column])
        else:
            better = length < step
        if better:
            row = i
            step = length
    return row, step


@lean_kernel
def _pivot(table: Floats, gain: Floats, row: int, column: int, used: Ints) -> None:
    """Exchange the variables of a row and a column; `used` (K,) is scratch."""
    pivot = table[row, column]
    count = 0
    for j in range(gain.size):
        if j != column and table[row, j] != 0.0:
            table[row, j] /= pivot
            used[count] = j
            count += 1
    for i in range(table.shape[0]):
        factor = table[i, column]
        if i == row or factor == 0.0:
            continue
        for k in range(count):
            table[i, used[k]] -= factor * table[row, used[k]]
        table[i, column] = -factor / pivot
    factor = gain[column]
    for k in range(count):
        gain[used[k]] -= factor * table[row, used[k]]
    gain[column] = -factor / pivot
    table[row, column] = 1.0 / pivot
