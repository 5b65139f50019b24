"""Overhead models beyond penalties: places that are held while they are left, costs of starts, progress.

Whoever comes to a node waits until all tasks that left it before are saved, whether they left by the same decision or
by one before: a node may have room for both, but an image that is written holds its memory and its disk. Jobs that
end leave at once.
"""

from __future__ import annotations

import math

from testbed.compiler import lean_kernel
from testbed.policies.state import Cluster, Jobs
from testbed.policies.view import NOT_PLACED, Floats, Ints
from testbed.simulation.overheads import Beyond, OverheadTable, overhead_s, progress_rate
from testbed.simulation.soundness import check_arrivals
from testbed.simulation.world import FAULT_ROW, Moving, World


@lean_kernel
def begin_moves(
    active: Ints, overheads: OverheadTable, jobs: Jobs, cluster: Cluster, world: World, moving: Moving
) -> None:
    """Find when the jobs that a decision places are free to progress; `world` still has the map before."""
    if overheads.beyond.bends:
        note_speeds(active, overheads.beyond, jobs, cluster, moving.speed)
    for row in active:
        find_moves(row, overheads.beyond, jobs, cluster, world, moving)
    if overheads.beyond.saves:
        hold_places(active, overheads, jobs, cluster, world, moving)
    at_once = total(moving.coming)
    for row in active:
        moving.free_at_s[row] = free_at(row, at_once, overheads, jobs, world, moving)
    for node in range(moving.coming.size):
        moving.coming[node] = 0
        moving.leaving[node] = 0


@lean_kernel
def end_moves(active: Ints, jobs: Jobs, world: World, moving: Moving, debug: bool) -> bool:
    """Put what `begin_moves` found in the place of the penalties alone; return whether, with `debug`, it is sound."""
    for row in active:
        if moving.free_at_s[row] > -math.inf:
            world.free_at_s[row] = moving.free_at_s[row]
    if debug:
        row = check_arrivals(active, jobs, world, moving)
        if row != NOT_PLACED:
            world.counts[FAULT_ROW] = row
            return False
    return True


@lean_kernel
def note_speeds(active: Ints, beyond: Beyond, jobs: Jobs, cluster: Cluster, speed_of: Floats) -> None:
    """Write how fast active jobs progress at the yields of a decision into `speed_of` (J,)."""
    for row in active:
        share = cluster.yield_frac[row]
        tasks = jobs.offset[row + 1] - jobs.offset[row]
        speed_of[row] = progress_rate(beyond, tasks, share) if share > 0.0 else 0.0


@lean_kernel
def find_moves(row: int, beyond: Beyond, jobs: Jobs, cluster: Cluster, world: World, moving: Moving) -> None:
    """Write which node each task of a job leaves, and to which it comes; count both by node.

    Tasks are interchangeable: those of a job that runs on move by as many as its two multisets of nodes differ.
    """
    begin, end = jobs.offset[row], jobs.offset[row + 1]
    ran, runs = world.ran[row], cluster.running[row]
    for task in range(begin, end):
        moving.left[task] = world.stood_on[task] if ran else NOT_PLACED
        moving.came_to[task] = cluster.task_node[task] if runs else NOT_PLACED
    if ran and runs:
        cancel_common(moving.left[begin:end], moving.came_to[begin:end], world.node_tasks)
    counted = beyond.starts or not math.isnan(world.start_s[row])
    for task in range(begin, end):
        if moving.left[task] != NOT_PLACED:
            moving.leaving[moving.left[task]] += 1
        if counted and moving.came_to[task] != NOT_PLACED:
            moving.coming[moving.came_to[task]] += 1


@lean_kernel
def cancel_common(left: Ints, came_to: Ints, node_tasks: Ints) -> None:
    """Make NOT_PLACED what two multisets of nodes, (T,) each, have in common; `node_tasks` (N,) is zeros."""
    for task in range(left.size):
        node_tasks[left[task]] += 1
    for task in range(came_to.size):
        node = came_to[task]
        if node_tasks[node] > 0:
            node_tasks[node] -= 1
            came_to[task] = NOT_PLACED
    # What is left of the counts are the tasks that really leave.
    for task in range(left.size):
        node = left[task]
        if node_tasks[node] > 0:
            node_tasks[node] -= 1
        else:
            left[task] = NOT_PLACED


@lean_kernel
def hold_places(
    active: Ints, overheads: OverheadTable, jobs: Jobs, cluster: Cluster, world: World, moving: Moving
) -> None:
    """Note until when tasks that leave hold their nodes, and when jobs that are paused have all of their images."""
    time_s = world.time_s[0]
    at_once = total(moving.leaving)
    for row in active:
        saved_s = time_s
        for task in range(jobs.offset[row], jobs.offset[row + 1]):
            node = moving.left[task]
            if node == NOT_PLACED:
                continue
            with_it = moving.leaving[node] if overheads.beyond.per_node else at_once
            took_s = overhead_s(overheads.penalties, overheads.beyond.save_s, float(with_it), jobs.mem_req_frac[row])
            moving.held_until_s[node] = max(moving.held_until_s[node], time_s + took_s)
            saved_s = max(saved_s, time_s + took_s)
        if world.ran[row] and not cluster.running[row]:
            moving.saved_at_s[row] = saved_s


@lean_kernel
def free_at(row: int, at_once: int, overheads: OverheadTable, jobs: Jobs, world: World, moving: Moving) -> float:
    """Return when a job that comes to nodes is free to progress, -infinite for one whose freedom does not change."""
    time_s = world.time_s[0]
    begin_s = time_s
    most = -1
    for task in range(jobs.offset[row], jobs.offset[row + 1]):
        node = moving.came_to[task]
        if node != NOT_PLACED:
            begin_s = max(begin_s, moving.held_until_s[node], moving.saved_at_s[row])
            most = max(most, moving.coming[node])
    if most < 0:
        return -math.inf
    if math.isnan(world.start_s[row]) and not overheads.beyond.starts:
        return begin_s if begin_s > time_s else -math.inf
    seconds = overheads.penalties.resume_s
    if math.isnan(world.start_s[row]):
        seconds = overheads.beyond.start_s
    elif world.ran[row]:
        seconds = overheads.penalties.migration_s
    with_it = most if overheads.beyond.per_node else at_once
    return float(begin_s + overhead_s(overheads.penalties, seconds, float(with_it), jobs.mem_req_frac[row]))


@lean_kernel
def total(counts: Ints) -> int:
    """Return the sum of counts (N,)."""
    found = 0
    for node in range(counts.size):
        found += counts[node]
    return int(found)
