"""The moves of jobs by a decision, and when the moved jobs can progress, for any overhead model.

If an overhead model has saves, tasks that come to a node whose memory does not suffice for them and for the tasks that
left it before, by the same decision or by an earlier one, wait until all of the latter are saved, as in a live run.
Jobs that end leave at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from testbed.scheduling.compiler import lean_kernel
from testbed.scheduling.places import match_nodes
from testbed.scheduling.policies.capacity import CAPACITY_FRAC
from testbed.scheduling.policies.state import Cluster, Jobs
from testbed.scheduling.policies.view import NOT_PLACED, Floats, Ints
from testbed.scheduling.simulation.overheads import ExtraOverheads, OverheadTable, overhead_s, progress_rate
from testbed.scheduling.simulation.run import MIGRATION, PREEMPTION, RESUME, START
from testbed.scheduling.simulation.world import PendingMoves, World
from testbed.scheduling.workload.jobs import Job

NOTHING = -1


@lean_kernel
def note_changes(active: Ints, in_full: bool, jobs: Jobs, cluster: Cluster, world: World) -> int:
    """Compare the map with the previous one: list the jobs that pause, resume, move or start; return their number.

    Tasks of a job are interchangeable: as many tasks of a job that continues to run move as its two multisets of nodes
    differ. With `in_full` the list also has starts, and `World.stands_on` has the new nodes by task. The model of the
    papers needs neither; without `in_full`, `World.stood_on` is updated at once.
    """
    changed = 0
    for place in range(active.size):
        row = active[place]
        begin, end = jobs.offset[row], jobs.offset[row + 1]
        ran, runs = world.ran[row], cluster.running[row]
        change = NOTHING
        tasks, away = end - begin, 0
        before, after = world.stood_on[begin:end], cluster.task_node[begin:end]
        if ran and runs:
            if not is_same(before, after):
                tasks = move(before, after, world.node_tasks, world.stands_on[begin : end if in_full else begin])
                change = MIGRATION if tasks > 0 else NOTHING
        elif ran:
            change = PREEMPTION
        elif runs:
            change = RESUME
            if math.isnan(world.start_s[row]):
                change = START
                world.start_s[row] = world.time_s[0]
                for task in range(before.size):
                    before[task] = after[task]
            away = move(before, after, world.node_tasks, world.stands_on[begin : end if in_full else begin])
        world.ran[row] = runs
        if change != NOTHING and (change != START or in_full):
            world.changed_row[changed] = row
            world.change[changed] = change
            world.changed_tasks[changed] = tasks
            world.changed_away[changed] = away
            changed += 1
    return changed


@lean_kernel
def is_same(before: Ints, after: Ints) -> bool:
    """Whether every task of a job (T,) has the same node as before, as for most jobs of most decisions."""
    for task in range(before.size):  # noqa: SIM110  # kernels have no generators
        if before[task] != after[task]:
            return False
    return True


@lean_kernel
def move(before: Ints, after: Ints, node_tasks: Ints, out: Ints) -> int:
    """Return the number of tasks that move, and write nodes to `out`; if `out` is empty, copy `after` to `before`."""
    moved = match_nodes(before, after, node_tasks, out)
    if out.size == 0:
        for task in range(before.size):
            before[task] = after[task]
    return int(moved)


@lean_kernel
def begin_moves(
    changed: int,
    active: Ints,
    overheads: OverheadTable,
    jobs: Jobs,
    cluster: Cluster,
    world: World,
    moves: PendingMoves,
) -> None:
    """Write when the jobs that a decision places can progress; all moves of a decision are concurrent.

    Penalties alone, the model of the papers, need no counts by node.
    """
    beyond = overheads.beyond
    by_node = beyond.saves or beyond.per_node
    if by_node:
        count_by_node(changed, active, overheads, jobs, cluster, world, moves)
    time_s = world.time_s[0]
    at_once = 0
    for index in range(changed):
        if costs(world.change[index], beyond.starts):
            at_once += world.changed_tasks[index]
    for index in range(changed):
        change, row = world.change[index], world.changed_row[index]
        if change == PREEMPTION:
            continue
        begin_s, with_it = time_s, at_once
        if by_node:
            begin_s, with_it = beside_others(index, at_once, beyond.per_node, jobs, world, moves)
        if costs(change, beyond.starts):
            world.free_at_s[row] = end_of_move(index, begin_s, with_it, overheads, jobs, world)
        elif begin_s > time_s:
            world.free_at_s[row] = begin_s


@lean_kernel
def end_of_move(
    index: int, begin_s: float, with_it: int, overheads: OverheadTable, jobs: Jobs, world: World
) -> float:  # fmt: skip
    """Return when a job that has room on its nodes from `begin_s` on can progress there."""
    change, row, beyond = world.change[index], world.changed_row[index], overheads.beyond
    several, mem_frac = jobs.offset[row + 1] - jobs.offset[row] > 1, jobs.mem_req_frac[row]
    took_s = seconds_of(change, overheads, with_it, mem_frac, several, world.changed_away[index] > 0)
    if change != MIGRATION or not (beyond.starts or beyond.saves):
        return float(begin_s + took_s)
    saved_s = min(saving_s(overheads, with_it, mem_frac, several), took_s) if beyond.by_images else 0.0
    ready_s = max(world.time_s[0], world.free_at_s[row]) + saved_s
    return float(max(begin_s, ready_s) + took_s - saved_s)


@lean_kernel
def seconds_of(
    change: int, overheads: OverheadTable, with_it: int, mem_req_frac: float, several: bool, elsewhere: bool
) -> float:  # fmt: skip
    """Return the seconds that a change costs a job, of `several` tasks or one, when `with_it` tasks move at once.

    `elsewhere`: a resume is on another node, which gets the image first.
    """
    penalties, beyond = overheads.penalties, overheads.beyond
    if change == RESUME:
        took_s = overhead_s(penalties, penalties.resume_s, float(with_it), mem_req_frac)
        if elsewhere:
            took_s += overhead_s(penalties, beyond.transfer_s, float(with_it), mem_req_frac)
        return took_s + (beyond.more_resume_s if several else 0.0)
    if change == MIGRATION:
        took_s = overhead_s(penalties, penalties.migration_s, float(with_it), mem_req_frac)
        return took_s + (beyond.more_migration_s if several else 0.0)
    took_s = overhead_s(penalties, beyond.start_s, float(with_it), mem_req_frac)
    return took_s + (beyond.more_start_s if several else 0.0)


@lean_kernel
def saving_s(overheads: OverheadTable, with_it: int, mem_req_frac: float, several: bool) -> float:
    """Return the seconds of a save of a job, of `several` tasks or one, when `with_it` tasks are saved at once."""
    took_s = overhead_s(overheads.penalties, overheads.beyond.save_s, float(with_it), mem_req_frac)
    return took_s + (overheads.beyond.more_save_s if several else 0.0)


def move_costs_s(jobs: Sequence[Job], overheads: OverheadTable) -> Floats:
    """Return the seconds for which a move of all its tasks, and of no others, stops each job (J,), for policies.

    Where concurrency counts per node, the tasks are expected on nodes of their own.
    """
    return np.array([
        seconds_of(
            MIGRATION, overheads, 1 if overheads.beyond.per_node else job.tasks, job.mem_req_frac, job.tasks > 1, False
        )
        for job in jobs
    ], dtype=np.float64)  # fmt: skip


@lean_kernel
def costs(change: int, starts: bool) -> bool:
    """Whether a change takes time at its new nodes; first starts only if the model has costs for them."""
    return bool(change in (RESUME, MIGRATION) or (change == START and starts))


@lean_kernel
def note_speeds(active: Ints, beyond: ExtraOverheads, jobs: Jobs, cluster: Cluster, speed_of: Floats) -> None:
    """Write the progress rates of active jobs at the yields of a decision to `speed_of` (J,)."""
    for row in active:
        share = cluster.yield_frac[row]
        tasks = jobs.offset[row + 1] - jobs.offset[row]
        speed_of[row] = progress_rate(beyond, tasks, share) if share > 0.0 else 0.0


@lean_kernel
def node_left(change: int, task: int, world: World) -> int:
    """Return the node that a task leaves by a change of its job, NOT_PLACED if it leaves none."""
    if change == PREEMPTION or (change == MIGRATION and world.stood_on[task] != world.stands_on[task]):
        return int(world.stood_on[task])
    return NOT_PLACED


@lean_kernel
def node_reached(change: int, task: int, world: World) -> int:
    """Return the node that a task comes to by a change of its job, NOT_PLACED if it comes to none."""
    if change in (START, RESUME) or (change == MIGRATION and world.stood_on[task] != world.stands_on[task]):
        return int(world.stands_on[task])
    return NOT_PLACED


@lean_kernel
def count_by_node(
    changed: int,
    active: Ints,
    overheads: OverheadTable,
    jobs: Jobs,
    cluster: Cluster,
    world: World,
    moves: PendingMoves,
) -> None:
    """Count the tasks that leave each node by this decision, and those that come at a cost; set holds for saves."""
    for node in range(moves.coming.size):
        moves.coming[node] = 0
        moves.leaving[node] = 0
    for index in range(changed):
        change, row = world.change[index], world.changed_row[index]
        for task in range(jobs.offset[row], jobs.offset[row + 1]):
            left, reached = node_left(change, task, world), node_reached(change, task, world)
            if left != NOT_PLACED:
                moves.leaving[left] += 1
            if reached != NOT_PLACED and costs(change, overheads.beyond.starts):
                moves.coming[reached] += 1
    if overheads.beyond.saves:
        hold_places(changed, overheads, jobs, world, moves)
        note_memory(active, jobs, cluster, moves)


@lean_kernel
def hold_places(changed: int, overheads: OverheadTable, jobs: Jobs, world: World, moves: PendingMoves) -> None:
    """Set the times until which leaving tasks hold their nodes, and at which paused jobs have all of their images."""
    beyond, time_s = overheads.beyond, world.time_s[0]
    at_once = 0
    for node in range(moves.leaving.size):
        at_once += moves.leaving[node]
        if moves.held_until_s[node] <= time_s:
            moves.held_frac[node] = 0.0
    for index in range(changed):
        change, row = world.change[index], world.changed_row[index]
        if change not in (PREEMPTION, MIGRATION):
            continue
        begin_s = max(time_s, world.free_at_s[row])  # the previous operation on the job ends first
        saved_s = begin_s
        several = jobs.offset[row + 1] - jobs.offset[row] > 1
        for task in range(jobs.offset[row], jobs.offset[row + 1]):
            node = node_left(change, task, world)
            if node == NOT_PLACED:
                continue
            with_it = moves.leaving[node] if beyond.per_node else at_once
            took_s = saving_s(overheads, with_it, jobs.mem_req_frac[row], several)
            if change == MIGRATION and beyond.by_copies:
                took_s = seconds_of(MIGRATION, overheads, with_it, jobs.mem_req_frac[row], several, False)
            moves.held_until_s[node] = max(moves.held_until_s[node], begin_s + took_s)
            moves.held_frac[node] += jobs.mem_req_frac[row]
            saved_s = max(saved_s, begin_s + took_s)
        if change == PREEMPTION:
            moves.saved_at_s[row] = saved_s


@lean_kernel
def note_memory(active: Ints, jobs: Jobs, cluster: Cluster, moves: PendingMoves) -> None:
    """Write the memory of the tasks on each node after a decision."""
    for node in range(moves.used_frac.size):
        moves.used_frac[node] = 0.0
    for row in active:
        if cluster.running[row]:
            for task in range(jobs.offset[row], jobs.offset[row + 1]):
                moves.used_frac[cluster.task_node[task]] += jobs.mem_req_frac[row]


@lean_kernel
def is_full(node: int, moves: PendingMoves) -> bool:
    """Whether a node has no memory for its present tasks beside those that left it and are being saved."""
    return bool(moves.used_frac[node] + moves.held_frac[node] > CAPACITY_FRAC)


@lean_kernel
def beside_others(
    index: int, at_once: int, per_node: bool, jobs: Jobs, world: World, moves: PendingMoves
) -> tuple[float, int]:
    """Return when the new nodes of a job are released and its images are written, and its concurrent tasks.

    The number of concurrent tasks is `at_once`, or with `per_node` the largest number of tasks that come, at a cost, to
    one of its nodes.
    """
    row, begin_s, most = world.changed_row[index], world.time_s[0], 0
    for task in range(jobs.offset[row], jobs.offset[row + 1]):
        node = node_reached(world.change[index], task, world)
        if node != NOT_PLACED:
            begin_s = max(begin_s, moves.saved_at_s[row])
            if is_full(node, moves):
                begin_s = max(begin_s, moves.held_until_s[node])
            most = max(most, moves.coming[node])
    return float(begin_s), int(most if per_node else at_once)
