"""CPU and memory in use on nodes: sums over tasks, and the one tolerance with which capacities are compared.

A node has CPU 1 and memory 1 [RR 2.2]. A node that may not be used counts as a node with infinite memory in use, so
that no kernel needs a second test for it.
"""

from __future__ import annotations

import numpy as np

from testbed.scheduling.compiler import kernel, lean_kernel
from testbed.scheduling.policies.state import Cluster, Jobs, Mask
from testbed.scheduling.policies.view import Floats, Ints

# Fractions such as 0.1 have no exact sum: ten tasks of 0.1 fill a node, and equal loads must compare equal.
TOLERANCE_FRAC = 1e-9
CAPACITY_FRAC = 1.0 + TOLERANCE_FRAC


def offsets(tasks: Ints) -> Ints:
    """Return the (J + 1,) running sum of `tasks` (J,): the tasks of row j are `offset[j]:offset[j + 1]`."""
    offset = np.zeros(tasks.size + 1, dtype=np.int64)
    np.cumsum(tasks, out=offset[1:])
    return offset


@kernel
def node_usage(rows: Ints, jobs: Jobs, cluster: Cluster, amount_frac: Floats) -> Floats:
    """Sum `amount_frac` (J,) of every task of the running `rows` over its node; return (N,) fractions of a node."""
    used = np.zeros(cluster.node_available.size)
    _add_usage(rows, jobs, cluster, amount_frac, used)
    return used


@lean_kernel
def _add_usage(rows: Ints, jobs: Jobs, cluster: Cluster, amount_frac: Floats, used: Floats) -> None:
    for row in rows:
        if cluster.running[row]:
            for task in range(jobs.offset[row], jobs.offset[row + 1]):
                used[cluster.task_node[task]] += amount_frac[row]


@kernel
def node_memory(rows: Ints, jobs: Jobs, cluster: Cluster) -> Floats:
    """Return the (N,) memory that the running `rows` use, infinite on nodes that are not available."""
    used = node_usage(rows, jobs, cluster, jobs.mem_req_frac)
    _close(cluster.node_available, used)
    return used


@lean_kernel
def _close(node_available: Mask, used: Floats) -> None:
    for node in range(used.size):
        if not node_available[node]:
            used[node] = np.inf


def tasks_per_node(mem_req_frac: float) -> int:
    """Return how many tasks of this memory requirement an empty node holds."""
    return int(CAPACITY_FRAC / mem_req_frac)
