"""Invariants after every decision and at every end, checked in debug mode, inside the loop."""

from __future__ import annotations

from testbed.scheduling.compiler import kernel, lean_kernel
from testbed.scheduling.policies.capacity import CAPACITY_FRAC, node_usage
from testbed.scheduling.policies.state import Cluster, Jobs
from testbed.scheduling.policies.view import NOT_PLACED, Floats, Ints
from testbed.scheduling.simulation.moving import node_reached
from testbed.scheduling.simulation.run import MIGRATION, RESUME
from testbed.scheduling.simulation.world import FAULT_ROW, PendingMoves, World

SOUND = 0
MEMORY_EXCEEDED = 1
CPU_EXCEEDED = 2
MAP_INCOMPLETE = 3
NOT_RUNNING_BUT_PLACED = 4
BAD_YIELD = 5
WRONG_END = 6
BEGUN_TOO_EARLY = 7
MEANING = {
    MEMORY_EXCEEDED: "is on a node whose memory is exceeded",
    CPU_EXCEEDED: "is on a node with more than all of its CPU given away",
    MAP_INCOMPLETE: "runs, but one of its tasks has no node, or one that is not available",
    NOT_RUNNING_BUT_PLACED: "does not run, but one of its tasks has a node",
    BAD_YIELD: "has a yield outside [0, 1], or one above 0 while it does not run",
    WRONG_END: "ends, but its virtual time is not its run time",
    BEGUN_TOO_EARLY: "makes progress on a node that is full of tasks that left, or before its own images are saved",
}

_CPU_FRAC = 1.0 + 1e-8  # the CPU use of a node is a sum of products, each with a rounding error
_MEMORY_FRAC = 1e-8  # sums of memory are in another order here
_END_S = 1e-6  # virtual time is the sum of many small steps, each with a rounding error


@kernel
def check_decision(active: Ints, jobs: Jobs, cluster: Cluster, node_sum: Floats) -> tuple[int, int]:
    """Return the first fault of a decision and the row of its job, or SOUND and NOT_PLACED.

    The map of running jobs is complete, memory and CPU of no node are exceeded, and yields are in [0, 1]. The tasks of
    a job have equal yields, as the data has one yield per job. `node_sum` (N,) is overwritten.
    """
    for row in active:
        runs = cluster.running[row]
        share = cluster.yield_frac[row]
        if not 0.0 <= share <= 1.0 or (share > 0.0 and not runs):
            return BAD_YIELD, row
        for task in range(jobs.offset[row], jobs.offset[row + 1]):
            node = cluster.task_node[task]
            if not runs and node != NOT_PLACED:
                return NOT_RUNNING_BUT_PLACED, row
            if runs and not (0 <= node < node_sum.size and cluster.node_available[node]):
                return MAP_INCOMPLETE, row
    row = first_beyond(active, jobs, cluster, node_usage(active, jobs, cluster, jobs.mem_req_frac), CAPACITY_FRAC)
    if row != NOT_PLACED:
        return MEMORY_EXCEEDED, row
    node_sum[:] = 0.0
    for row in active:
        if cluster.running[row]:
            for task in range(jobs.offset[row], jobs.offset[row + 1]):
                node_sum[cluster.task_node[task]] += jobs.cpu_need_frac[row] * cluster.yield_frac[row]
    row = first_beyond(active, jobs, cluster, node_sum, _CPU_FRAC)
    return (SOUND, NOT_PLACED) if row == NOT_PLACED else (CPU_EXCEEDED, row)


@lean_kernel
def first_beyond(active: Ints, jobs: Jobs, cluster: Cluster, used_frac: Floats, limit_frac: float) -> int:
    """Return the first row with a task on a node that is used above the limit, NOT_PLACED without one."""
    for row in active:
        if cluster.running[row]:
            for task in range(jobs.offset[row], jobs.offset[row + 1]):
                if used_frac[cluster.task_node[task]] > limit_frac:
                    return int(row)
    return NOT_PLACED


@lean_kernel
def check_end(virtual_time_s: float, run_time_s: float) -> int:
    """Return WRONG_END if the virtual time of a job that ends differs from its run time by more than rounding."""
    return SOUND if abs(virtual_time_s - run_time_s) <= _END_S * max(run_time_s, 1.0) else WRONG_END


@lean_kernel
def arrivals_are_sound(changed: int, live: bool, jobs: Jobs, world: World, moves: PendingMoves) -> bool:
    """Whether jobs progress at a node only where it has room for them; else the first faulty row is in `FAULT_ROW`.

    A job can progress only when its own images are written, and when its new nodes have memory for it and for all
    tasks that stay there, that have come before, or that have left but are not saved yet. If guests migrate `live`, the
    places that they leave are not checked: two guests that exchange their places each wait for the other one.
    """
    for index in range(changed):
        row = world.changed_row[index]
        free_s = max(world.free_at_s[row], moves.arrives_s[row])
        if world.change[index] == RESUME and free_s < moves.saved_at_s[row]:
            world.counts[FAULT_ROW] = row
            return False
        for task in range(jobs.offset[row], jobs.offset[row + 1]):
            node = node_reached(world.change[index], task, world)
            if node == NOT_PLACED or free_s < world.time_s[0]:
                continue
            later_frac = 0.0
            for place in range(changed):
                other = world.changed_row[place]
                if moves.arrives_s[other] > free_s:
                    for theirs in range(jobs.offset[other], jobs.offset[other + 1]):
                        if node_reached(world.change[place], theirs, world) == node:
                            later_frac += jobs.mem_req_frac[other]
            if memory_at(node, row, live, free_s, jobs, moves) - later_frac > CAPACITY_FRAC + _MEMORY_FRAC:
                world.counts[FAULT_ROW] = row
                return False
    return True


@lean_kernel
def memory_at(node: int, row: int, live: bool, time_s: float, jobs: Jobs, moves: PendingMoves) -> float:
    """Return the memory in use on a node by all that stay and come, and by what other jobs left there until then."""
    found = float(moves.used_frac[node])
    for place in range(moves.holds[0]):
        other = moves.holding[place]
        if other == row or (live and moves.operation[other] == MIGRATION):
            continue
        if moves.held_until_s[other] > time_s:
            for task in range(jobs.offset[other], jobs.offset[other + 1]):
                if moves.held_on[task] == node:
                    found += jobs.mem_req_frac[other]
    return found
