"""What nodes hold: sums over tasks, and the one tolerance with which capacities are compared.

A node has CPU 1 and memory 1 [RR 2.2]. A node that may not be used counts as a node whose memory is full
without end, so that no kernel needs a second test for it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.policies.view import NOT_PLACED, Floats, Ints

# Fractions such as 0.1 have no exact sum: ten tasks of 0.1 fill a node, and equal loads must compare equal.
TOLERANCE_FRAC = 1e-9
CAPACITY_FRAC = 1.0 + TOLERANCE_FRAC


def offsets(tasks: Ints) -> Ints:
    """Return the (J + 1,) running sum of `tasks` (J,): the tasks of row j are `offset[j]:offset[j + 1]`."""
    offset = np.zeros(tasks.size + 1, dtype=np.int64)
    np.cumsum(tasks, out=offset[1:])
    return offset


def node_usage(task_node: Ints, tasks: Ints, amount_frac: Floats, nodes: int) -> Floats:
    """Sum `amount_frac` (J,) of every placed task over its node; return (nodes,) fractions of a node."""
    placed = task_node != NOT_PLACED
    weights = np.repeat(amount_frac, tasks)[placed]
    return np.bincount(task_node[placed], weights=weights, minlength=nodes).astype(np.float64)


def node_memory(task_node: Ints, tasks: Ints, mem_req_frac: Floats, node_available: NDArray[np.bool_]) -> Floats:
    """Return the (N,) memory in use, infinite on nodes that are not available."""
    used = node_usage(task_node, tasks, mem_req_frac, node_available.size)
    used[~node_available] = np.inf
    return used


def occupy(nodes: Ints, amount: float, used: Floats | Ints) -> None:
    """Add `amount` (negative to release) to `used` (N,) in place, once for each element of `nodes`."""
    for node in nodes:
        used[node] += amount


def tasks_per_node(mem_req_frac: float) -> int:
    """Return how many tasks of this memory requirement an empty node holds."""
    return int(CAPACITY_FRAC / mem_req_frac)
