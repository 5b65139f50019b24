"""Placement beside guaranteed yields: a job with a guarantee comes only to nodes that can still keep it."""

from __future__ import annotations

import numpy as np

from testbed.scheduling.compiler import kernel, lean_kernel
from testbed.scheduling.policies.capacity import CAPACITY_FRAC, TOLERANCE_FRAC, node_memory, node_usage
from testbed.scheduling.policies.fairness import MOST_GUARANTEED_FRAC, guaranteed
from testbed.scheduling.policies.greedy import make_room, place, place_all, room_for
from testbed.scheduling.policies.placing import pause
from testbed.scheduling.policies.state import Cluster, Jobs, Rules
from testbed.scheduling.policies.view import NOT_PLACED, Floats, Ints


@lean_kernel
def promise_of(row: int, jobs: Jobs, rules: Rules) -> float:
    """Return the CPU of a node that each task of a job is guaranteed."""
    return float(jobs.cpu_need_frac[row] * guaranteed(row, jobs, rules))


@lean_kernel
def keeps(promised_frac: float, promise: float) -> bool:
    """Whether a node that has guaranteed `promised_frac` can guarantee `promise` more; always for no promise."""
    return bool(promise <= 0.0 or promised_frac + promise <= MOST_GUARANTEED_FRAC + TOLERANCE_FRAC)


@kernel
def promised(active: Ints, jobs: Jobs, cluster: Cluster, rules: Rules) -> Floats:
    """Return the guaranteed CPU (N,) of the running jobs on each node."""
    found = np.zeros(cluster.node_available.size)
    if rules.guarantees:
        for row in active:
            if cluster.running[row]:
                for task in range(jobs.offset[row], jobs.offset[row + 1]):
                    found[cluster.task_node[task]] += promise_of(row, jobs, rules)
    return found


@lean_kernel
def set_down(
    row: int, rules: Rules, jobs: Jobs, cluster: Cluster, cpu_frac: Floats, mem_frac: Floats, promised_frac: Floats
) -> bool:  # fmt: skip
    """Place a job, each task on the least loaded node with memory for it that can keep its guarantee.

    Update the three usages (N,); without a placement change nothing, and return False.
    """
    begin, end = jobs.offset[row], jobs.offset[row + 1]
    need, mem, promise = jobs.cpu_need_frac[row], jobs.mem_req_frac[row], promise_of(row, jobs, rules)
    if promise <= 0.0:
        cluster.running[row] = place(need, mem, cpu_frac, mem_frac, cluster.task_node[begin:end])
        return bool(cluster.running[row])
    if not _has_room(end - begin, mem, promise, mem_frac, promised_frac):
        return False
    for task in range(begin, end):
        best, least = NOT_PLACED, np.inf
        for node in range(cpu_frac.size):
            if cpu_frac[node] < least and mem_frac[node] + mem <= CAPACITY_FRAC and keeps(promised_frac[node], promise):
                best, least = node, cpu_frac[node]
        cluster.task_node[task] = best
        cpu_frac[best] += need
        mem_frac[best] += mem
        promised_frac[best] += promise
    cluster.running[row] = True
    return True


@lean_kernel
def _has_room(tasks: int, mem_req_frac: float, promise: float, mem_frac: Floats, promised_frac: Floats) -> bool:
    """Whether the nodes have memory for so many tasks, and can keep their guarantees."""
    room = 0
    for node in range(mem_frac.size):
        most, promised = room_for(mem_req_frac, mem_frac[node], tasks - room), promised_frac[node]
        for _ in range(most):
            if keeps(promised, promise):
                promised += promise
                room += 1
        if room >= tasks:
            return True
    return False


@kernel
def place_each(
    rows: Ints, rules: Rules, jobs: Jobs, cluster: Cluster, cpu_frac: Floats, mem_frac: Floats, promised_frac: Floats
) -> None:  # fmt: skip
    """Try to place `rows`, none of which runs, in their order, each once; update map, `running` and usages (N,)."""
    if not rules.guarantees:
        place_all(rows, jobs, cluster, cpu_frac, mem_frac)
        return
    for row in rows:
        set_down(row, rules, jobs, cluster, cpu_frac, mem_frac, promised_frac)


@kernel
def pause_for(
    newcomer: int, candidates: Ints, rules: Rules, jobs: Jobs, cluster: Cluster, active: Ints, cpu_frac: Floats,
    mem_frac: Floats, promised_frac: Floats,
) -> Ints:  # fmt: skip
    """Place a job with a guarantee, and pause `candidates` (rows, by increasing priority) for it where it needs memory.

    Return the paused rows, by decreasing priority. None is paused if it still finds no place; pauses are chosen by
    memory on nodes that can keep the guarantee of one of its tasks.
    """
    promise = promise_of(newcomer, jobs, rules)
    open_frac = mem_frac.copy()  # memory in use of nodes that can keep the guarantee
    for node in range(open_frac.size):
        if not keeps(promised_frac[node], promise):
            open_frac[node] = np.inf
    marked = np.zeros(candidates.size, dtype=np.bool_)
    if not make_room(newcomer, candidates, jobs, cluster, open_frac, marked):
        return candidates[:0].copy()
    ran, stood_on = cluster.running.copy(), cluster.task_node.copy()
    paused = candidates[marked][::-1].copy()
    for row in paused:
        pause(row, jobs, cluster)
    cpu_frac[:] = node_usage(active, jobs, cluster, jobs.cpu_need_frac)
    mem_frac[:] = node_memory(active, jobs, cluster)
    if set_down(newcomer, rules, jobs, cluster, cpu_frac, mem_frac, promised_frac):
        return paused
    cluster.running[:] = ran
    cluster.task_node[:] = stood_on
    cpu_frac[:] = node_usage(active, jobs, cluster, jobs.cpu_need_frac)
    mem_frac[:] = node_memory(active, jobs, cluster)
    return paused[:0].copy()
