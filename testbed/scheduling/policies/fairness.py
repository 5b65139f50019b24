"""Weighted max-min fairness with guarantees: yields in proportion to weights, but never below guarantees.

At a level L a job has the yield min(1, max(m, r L)): m is its guaranteed yield, r its weight relative to the smallest
weight of all jobs. L is raised until a node is full; the jobs on that node keep their yields, and L is raised further
for the others. With equal weights and no guarantees this is OPT=MIN of [RR 4.6]. Weights decay with virtual time if the
rules have a `decay_s`: a job with that virtual time has half of its weight.
"""

from __future__ import annotations

import numpy as np

from testbed.scheduling.compiler import kernel, lean_kernel
from testbed.scheduling.policies.capacity import TOLERANCE_FRAC
from testbed.scheduling.policies.placing import pause
from testbed.scheduling.policies.state import Cluster, Jobs, Mask, Rules
from testbed.scheduling.policies.view import Floats, Ints

MOST_GUARANTEED_FRAC = 0.99  # of a node: at least the rest is for jobs without guarantees


@lean_kernel
def is_plain(rules: Rules) -> bool:
    """Whether all jobs have the same weight, and no guarantees."""
    return not (rules.weighs or rules.guarantees or rules.decay_s > 0.0)


@lean_kernel
def guaranteed(row: int, jobs: Jobs, rules: Rules) -> float:
    """Return the least yield of a job while it runs."""
    return float(jobs.least_yield_frac[row]) if rules.guarantees else 0.0


@kernel
def relative_weights(active: Ints, jobs: Jobs, cluster: Cluster, rules: Rules) -> Floats:
    """Return the weights (J,) of active rows relative to the smallest of them, 1 for the others."""
    weight = np.ones(jobs.weight.size)
    if is_plain(rules):
        return weight
    smallest = np.inf
    for row in active:
        if rules.weighs:
            weight[row] = jobs.weight[row]
        if rules.decay_s > 0.0:
            weight[row] /= 1.0 + cluster.virtual_time_s[row] / rules.decay_s
        smallest = min(smallest, weight[row])
    for row in active:
        weight[row] /= smallest
    return weight


@lean_kernel
def level_yield(level: float, ratio: float, least: float) -> float:
    """Return the yield of a job at a level."""
    return float(min(1.0, max(least, ratio * level)))


@kernel
def weighted_yields(active: Ints, jobs: Jobs, cluster: Cluster, rules: Rules) -> None:
    """Set the yields of all active rows for a map, in (0, 1] for jobs that run and 0 for the others.

    The guarantees must fit on all nodes: see `keep_guarantees`.
    """
    ratio = relative_weights(active, jobs, cluster, rules)
    begin, rows = _by_node(active, jobs, cluster)
    grows = np.zeros(ratio.size, dtype=np.bool_)
    for row in active:
        cluster.yield_frac[row] = 0.0
        grows[row] = cluster.running[row]
    full_at = np.full(begin.size - 1, -1.0)  # negative: to be computed
    lowest = 0.0
    while lowest < np.inf:
        lowest = np.inf
        for node in range(full_at.size):
            if full_at[node] < 0.0:
                full_at[node] = _full_at(rows[begin[node] : begin[node + 1]], ratio, grows, jobs, cluster, rules)
            lowest = min(lowest, full_at[node])
        for node in range(full_at.size):
            if 0.0 <= full_at[node] <= lowest * (1.0 + TOLERANCE_FRAC) and lowest < np.inf:
                _fix(rows[begin[node] : begin[node + 1]], lowest, ratio, grows, jobs, cluster, rules, full_at)
                full_at[node] = np.inf
    for row in active:
        if grows[row]:
            cluster.yield_frac[row] = 1.0


@lean_kernel
def _fix(
    rows: Ints, level: float, ratio: Floats, grows: Mask, jobs: Jobs, cluster: Cluster, rules: Rules, full_at: Floats
) -> None:  # fmt: skip
    """Fix the growing jobs of a node at a level; the levels of all their nodes are to be computed again."""
    for row in rows:
        if grows[row]:
            grows[row] = False
            cluster.yield_frac[row] = level_yield(level, ratio[row], guaranteed(row, jobs, rules))
            for task in range(jobs.offset[row], jobs.offset[row + 1]):
                full_at[cluster.task_node[task]] = -1.0


@kernel
def _by_node(active: Ints, jobs: Jobs, cluster: Cluster) -> tuple[Ints, Ints]:
    """Return the index of the first task of each node (N + 1,), and the rows of all running tasks, by node."""
    begin = np.zeros(cluster.node_available.size + 1, dtype=np.int64)
    for row in active:
        if cluster.running[row]:
            for task in range(jobs.offset[row], jobs.offset[row + 1]):
                begin[cluster.task_node[task] + 1] += 1
    for node in range(begin.size - 1):
        begin[node + 1] += begin[node]
    rows = np.empty(begin[-1], dtype=np.int64)
    filled = begin[:-1].copy()
    for row in active:
        if cluster.running[row]:
            for task in range(jobs.offset[row], jobs.offset[row + 1]):
                rows[filled[cluster.task_node[task]]] = row
                filled[cluster.task_node[task]] += 1
    return begin, rows


@kernel
def _full_at(rows: Ints, ratio: Floats, grows: Mask, jobs: Jobs, cluster: Cluster, rules: Rules) -> float:
    """Return the level at which the growing tasks fill their node; infinite if they never do.

    The CPU that they use is linear in the level between the levels at which a task leaves its guarantee or reaches 1.
    """
    room, count = 1.0, 0
    bends = np.empty(2 * rows.size)
    for row in rows:
        if grows[row]:
            bends[count] = guaranteed(row, jobs, rules) / ratio[row]
            bends[count + 1] = 1.0 / ratio[row]
            count += 2
        else:
            room -= jobs.cpu_need_frac[row] * cluster.yield_frac[row]
    if count == 0 or _used(rows, 1.0, ratio, grows, jobs, rules) <= room + TOLERANCE_FRAC:
        return np.inf
    below = 0.0
    used_below = _used(rows, below, ratio, grows, jobs, rules)
    for bend in np.sort(bends[:count]):
        used = _used(rows, bend, ratio, grows, jobs, rules)
        if used > room:
            if used_below >= room:
                return float(below)
            return float(below + (bend - below) * (room - used_below) / (used - used_below))
        below, used_below = bend, used
    return float(below)


@lean_kernel
def _used(rows: Ints, level: float, ratio: Floats, grows: Mask, jobs: Jobs, rules: Rules) -> float:
    """Return the CPU that the growing tasks of a node use at a level."""
    used = 0.0
    for row in rows:
        if grows[row]:
            used += jobs.cpu_need_frac[row] * level_yield(level, ratio[row], guaranteed(row, jobs, rules))
    return used


@kernel
def keep_guarantees(active: Ints, ran: Mask, jobs: Jobs, cluster: Cluster) -> None:
    """Pause jobs until all guarantees fit on their nodes: jobs that did not run before first, the youngest first."""
    used = np.zeros(cluster.node_available.size)
    for row in active:
        if cluster.running[row]:
            _add(row, 1.0, used, jobs, cluster)
    for old in (False, True):
        for row in active[::-1]:
            if not cluster.running[row] or ran[row] != old or jobs.least_yield_frac[row] <= 0.0:
                continue
            if _is_crowded(row, used, jobs, cluster):
                _add(row, -1.0, used, jobs, cluster)
                pause(row, jobs, cluster)


@lean_kernel
def _add(row: int, sign: float, used: Floats, jobs: Jobs, cluster: Cluster) -> None:
    for task in range(jobs.offset[row], jobs.offset[row + 1]):
        used[cluster.task_node[task]] += sign * jobs.cpu_need_frac[row] * jobs.least_yield_frac[row]


@lean_kernel
def _is_crowded(row: int, used: Floats, jobs: Jobs, cluster: Cluster) -> bool:
    """Whether a node of a job has guaranteed more CPU than it may."""
    for task in range(jobs.offset[row], jobs.offset[row + 1]):  # kernels have no generators
        if used[cluster.task_node[task]] > MOST_GUARANTEED_FRAC + TOLERANCE_FRAC:
            return True
    return False
