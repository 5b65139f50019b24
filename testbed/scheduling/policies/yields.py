"""CPU shares for a given map: kernels that set the yields of all active jobs [RR 4.6].

All of them start from the largest yield that all jobs can have at once, 1 / max(1, Λ), where Λ is the largest CPU
load of a node, and then allocate the remaining CPU of the nodes. They read the map and which rows run, and write
`cluster.yield_frac` of every active row: in (0, 1] for a job that runs and 0 for one that does not. No
node is used beyond `CAPACITY_FRAC`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from testbed.scheduling.compiler import kernel, lean_kernel
from testbed.scheduling.policies.capacity import CAPACITY_FRAC, TOLERANCE_FRAC, node_usage
from testbed.scheduling.policies.simplex import maximise_sum
from testbed.scheduling.policies.state import Cluster, Jobs
from testbed.scheduling.policies.view import Floats, Ints


class Crowd(NamedTuple):
    """The M overloaded nodes, and the P tasks on them; a node that is not overloaded limits no job."""

    slot: Ints  # (N,), -1 for a node that is not overloaded
    load: Floats  # (M,) CPU need of the growing tasks
    room: Floats  # (M,) CPU that the fixed tasks leave
    growing: Ints  # (M,) how many tasks grow; exact, while `load` has rounding errors
    limit: Floats  # (M,) the yield of the growing tasks at which the node is full, infinite when there are none
    head: Ints  # (M,) first position of the linked list of a node's tasks, which ends with -1
    following: Ints  # (P,)
    row_at: Ints  # (P,)


@kernel
def max_min_yields(active: Ints, jobs: Jobs, cluster: Cluster) -> None:
    """Set max-min fair yields (OPT=MIN): raise the least yield, fix the jobs that cannot grow, repeat [RR 4.6].

    Jobs with a task on a node that a round fills are fixed at the level that the round has reached. The
    cost is one pass over the placed tasks, a second one if some node is overloaded, and, in each
    round, one over the overloaded nodes that still have jobs to raise.
    """
    needed = equal_yields(active, jobs, cluster, 1.0)
    slot, lives = overloaded(needed)
    if lives == 0:
        return
    crowd = gather(active, jobs, cluster, needed, slot, lives)
    _raise_levels(crowd, np.arange(lives), jobs, cluster)


@lean_kernel
def _raise_levels(crowd: Crowd, live: Ints, jobs: Jobs, cluster: Cluster) -> None:
    """Raise and fix until no job can grow; `live` are the slots of nodes that may limit a job, and is overwritten."""
    lives = live.size
    level = 0.0
    while True:
        lives, lowest = _compact(crowd.limit, live, lives)
        if lives == 0:
            return
        # Rounding errors must not lower the level that was reached.
        level = max(level, lowest)
        for k in range(lives):
            if crowd.limit[live[k]] <= level + TOLERANCE_FRAC:
                _fill(live[k], level, crowd, jobs, cluster)


@kernel
def overloaded(load: Floats) -> tuple[Ints, int]:
    """Return the slots (N,) of nodes whose `load` (N,) is above their capacity, in order, and their number."""
    slot = np.empty(load.size, dtype=np.int64)
    return slot, _number(load, slot)


@lean_kernel
def _number(load: Floats, slot: Ints) -> int:
    count = 0
    for node in range(load.size):
        if load[node] > CAPACITY_FRAC:
            slot[node] = count
            count += 1
        else:
            slot[node] = -1
    return count


@kernel
def gather(active: Ints, jobs: Jobs, cluster: Cluster, needed: Floats, slot: Ints, slots: int) -> Crowd:
    """Chain the tasks on the nodes with a slot; `needed` (N,) is the CPU need on the nodes."""
    placed = _placed(active, jobs, cluster)
    crowd = Crowd(
        slot,
        np.empty(slots),
        np.ones(slots),
        np.zeros(slots, dtype=np.int64),
        np.empty(slots),
        np.full(slots, -1, dtype=np.int64),
        np.empty(placed, dtype=np.int64),
        np.empty(placed, dtype=np.int64),
    )
    _chain(active, jobs, cluster, needed, crowd)
    return crowd


@lean_kernel
def _placed(active: Ints, jobs: Jobs, cluster: Cluster) -> int:
    """Return the number of tasks that run."""
    placed = 0
    for row in active:
        if cluster.running[row]:
            placed += jobs.offset[row + 1] - jobs.offset[row]
    return int(placed)


@lean_kernel
def _chain(active: Ints, jobs: Jobs, cluster: Cluster, needed: Floats, crowd: Crowd) -> None:
    slot = crowd.slot
    for node in range(slot.size):
        if slot[node] >= 0:
            crowd.load[slot[node]] = needed[node]
            crowd.limit[slot[node]] = 1.0 / needed[node]
    position = 0
    for row in active:
        if cluster.running[row]:
            for task in range(jobs.offset[row], jobs.offset[row + 1]):
                i = slot[cluster.task_node[task]]
                if i >= 0:
                    crowd.row_at[position] = row
                    crowd.following[position] = crowd.head[i]
                    crowd.head[i] = position
                    crowd.growing[i] += 1
                    position += 1


@lean_kernel
def _compact(limit: Floats, live: Ints, lives: int) -> tuple[int, float]:
    """Keep, in place, the first `lives` slots of `live` with a `limit` below 1; return their number, and the lowest."""
    lowest = 1.0
    kept = 0
    for k in range(lives):
        if limit[live[k]] < 1.0:
            live[kept] = live[k]
            kept += 1
            lowest = min(lowest, limit[live[k]])
    return kept, lowest


@lean_kernel
def _fill(i: int, level: float, crowd: Crowd, jobs: Jobs, cluster: Cluster) -> None:
    """Fix the growing jobs of the node in slot `i`, which is full, at a yield of `level`."""
    crowd.limit[i] = np.inf
    position = crowd.head[i]
    while position >= 0:
        row = crowd.row_at[position]
        position = crowd.following[position]
        if cluster.yield_frac[row] < 1.0:  # fixed before: growing jobs still have the initial yield of 1
            continue
        cluster.yield_frac[row] = level
        need = jobs.cpu_need_frac[row]
        for task in range(jobs.offset[row], jobs.offset[row + 1]):
            other = crowd.slot[cluster.task_node[task]]
            if other >= 0:
                crowd.growing[other] -= 1
                crowd.load[other] -= need
                crowd.room[other] -= need * level
                grows = crowd.growing[other] > 0 and crowd.load[other] > TOLERANCE_FRAC
                crowd.limit[other] = crowd.room[other] / crowd.load[other] if grows else np.inf


@kernel
def raise_cheapest_first(active: Ints, jobs: Jobs, cluster: Cluster) -> None:
    """Raise yields from the equal minimum, the job with the least total CPU need first ([IPDPS] III.A).

    The total is tasks times need; at ties the job submitted first comes first. A job is raised until it has a yield of
    1 or one of its nodes is full. As no step frees CPU, one pass in this order is complete.
    """
    room = equal_minimum(active, jobs, cluster)
    total = np.empty(active.size)
    for k in range(active.size):
        row = active[k]
        total[k] = (jobs.offset[row + 1] - jobs.offset[row]) * jobs.cpu_need_frac[row]
    raise_in_order(active[np.argsort(total, kind="mergesort")], jobs, cluster, room)


@kernel
def average_yields(active: Ints, jobs: Jobs, cluster: Cluster) -> None:
    """Set the yields of largest mean, none below 1 / max(1, Λ) (OPT=AVG): linear program (2) of [RR 4.6].

    The optimum is exact, up to rounding; where it is not unique, the pivoting rule of `maximise_sum` selects one.
    """
    room = equal_minimum(active, jobs, cluster)
    rows, slot = settle(active, jobs, cluster, room)
    if rows.size == 0:
        return
    weight, open_room = constraints(rows, slot, jobs, cluster, room)
    upper = np.empty(rows.size)
    for k in range(rows.size):
        upper[k] = 1.0 - cluster.yield_frac[rows[k]]
    more = maximise_sum(weight, open_room, upper)
    for k in range(rows.size):
        cluster.yield_frac[rows[k]] = 1.0 if more[k] >= upper[k] else cluster.yield_frac[rows[k]] + more[k]


@kernel
def equal_yields(active: Ints, jobs: Jobs, cluster: Cluster, yield_frac: float) -> Floats:
    """Give every running job this yield, the others 0; return the (N,) CPU *needs* of the tasks of each node."""
    _set_equal(active, cluster, yield_frac)
    return node_usage(active, jobs, cluster, jobs.cpu_need_frac)


@lean_kernel
def _set_equal(active: Ints, cluster: Cluster, yield_frac: float) -> None:
    for row in active:
        cluster.yield_frac[row] = yield_frac if cluster.running[row] else 0.0


@kernel
def equal_minimum(active: Ints, jobs: Jobs, cluster: Cluster) -> Floats:
    """Give every running job 1 / max(1, Λ), the others 0 [RR 4.6]; return the (N,) CPU that is left on the nodes."""
    room = equal_yields(active, jobs, cluster, 1.0)
    heaviest = 1.0
    for node in range(room.size):
        heaviest = max(heaviest, room[node])
    least = 1.0 if heaviest <= CAPACITY_FRAC else 1.0 / heaviest
    for row in active:
        if cluster.running[row]:
            cluster.yield_frac[row] = least
    for node in range(room.size):
        room[node] = 1.0 - room[node] * least
    return room


@kernel
def raise_in_order(rows: Ints, jobs: Jobs, cluster: Cluster, room: Floats) -> None:
    """Raise the running jobs of `rows`, one by one, as far as the free CPU `room` (N,) allows; update `room`."""
    weight = np.zeros(room.size)  # CPU need of the present job on each node
    for row in rows:
        if not cluster.running[row]:
            continue
        more = 1.0 - cluster.yield_frac[row]
        first, end = jobs.offset[row], jobs.offset[row + 1]
        for task in range(first, end):
            weight[cluster.task_node[task]] += jobs.cpu_need_frac[row]
        for task in range(first, end):
            node = cluster.task_node[task]
            more = min(more, room[node] / weight[node])
        if more > TOLERANCE_FRAC:
            for task in range(first, end):
                room[cluster.task_node[task]] -= more * jobs.cpu_need_frac[row]
            cluster.yield_frac[row] = min(1.0, cluster.yield_frac[row] + more)
        for task in range(first, end):
            weight[cluster.task_node[task]] = 0.0


@kernel
def settle(active: Ints, jobs: Jobs, cluster: Cluster, room: Floats) -> tuple[Ints, Ints]:
    """Settle the jobs whose final yield is evident, after least yields are set that leave `room` (N,) CPU on the nodes.

    A job on a full node keeps its yield. A job gets a yield of 1 if each of its nodes has enough CPU for all of the
    node's jobs that can grow. Return the rows (K,) of the others, and the slot (N,) of each node that can limit them,
    -1 for the rest; slots count from 0 by node. `room` is not changed, as the jobs that went to 1 are on no node with a
    slot.
    """
    demand = np.ones(room.size)  # CPU use of each node if all jobs that can grow had a yield of 1
    opened = np.empty(active.size, dtype=np.int64)
    opens = 0
    for node in range(room.size):
        demand[node] -= room[node]
    for row in active:
        if cluster.running[row] and cluster.yield_frac[row] < 1.0 and _has_room(row, jobs, cluster, room):
            opened[opens] = row
            opens += 1
            more = jobs.cpu_need_frac[row] * (1.0 - cluster.yield_frac[row])
            for task in range(jobs.offset[row], jobs.offset[row + 1]):
                demand[cluster.task_node[task]] += more
    slot, _ = overloaded(demand)
    kept = 0
    for k in range(opens):
        row = opened[k]
        limited = False
        for task in range(jobs.offset[row], jobs.offset[row + 1]):
            limited = limited or slot[cluster.task_node[task]] >= 0
        if limited:
            opened[kept] = row
            kept += 1
        else:
            cluster.yield_frac[row] = 1.0
    return opened[:kept].copy(), slot


@lean_kernel
def _has_room(row: int, jobs: Jobs, cluster: Cluster, room: Floats) -> bool:
    """Whether every node of a job has CPU left."""
    least = np.inf
    for task in range(jobs.offset[row], jobs.offset[row + 1]):
        least = min(least, room[cluster.task_node[task]])
    return least > TOLERANCE_FRAC


@kernel
def constraints(rows: Ints, slot: Ints, jobs: Jobs, cluster: Cluster, room: Floats) -> tuple[Floats, Floats]:
    """Return the (M, K) CPU needs of `rows` (K,) on the M nodes with a slot, and the (M,) CPU left on these."""
    nodes = np.flatnonzero(slot >= 0)
    weight = np.zeros((nodes.size, rows.size))
    for k in range(rows.size):
        row = rows[k]
        for task in range(jobs.offset[row], jobs.offset[row + 1]):
            i = slot[cluster.task_node[task]]
            if i >= 0:
                weight[i, k] += jobs.cpu_need_frac[row]
    return weight, room[nodes]
