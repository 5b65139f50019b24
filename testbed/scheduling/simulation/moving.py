"""The moves of jobs by a decision, and when the moved jobs can progress, for any overhead model.

If an overhead model has starts or saves, operations are done as by the controller of a live run. Those on one job are
done one after the other; one that has not begun when the job is paused or placed elsewhere is never done. A task that
left its node occupies memory there until it is saved, and a job begins to start, to resume or to migrate when its nodes
have memory for it. Jobs that end leave at once. Jobs that come by one decision get the memory in the order of their
submission; guests that migrate live come first.
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
from testbed.scheduling.simulation.overheads import (
    ExtraOverheads,
    OverheadTable,
    extra_start_s,
    overhead_s,
    progress_rate,
)
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

    Penalties alone, the model of the papers, need no lists by node.
    """
    beyond = overheads.beyond
    if beyond.ordered or beyond.per_node:
        list_by_node(changed, active, overheads, jobs, cluster, world, moves)
    if beyond.ordered:
        leave(changed, overheads, jobs, world, moves)
        note_memory(changed, active, jobs, cluster, world, moves)
        for live in (True, False):
            for index in range(changed):
                change = world.change[index]
                if change != PREEMPTION and live == (change == MIGRATION and beyond.by_copies):
                    arrive(index, changed, overheads, jobs, world, moves)
        return
    for index in range(changed):
        change, row = world.change[index], world.changed_row[index]
        if change != PREEMPTION and costs(change, beyond.starts):
            with_it = coming_with(index, changed, overheads, jobs, world, moves)
            several, away = jobs.offset[row + 1] - jobs.offset[row] > 1, world.changed_away[index] > 0
            took_s = seconds_of(change, overheads, with_it, 0, jobs.mem_req_frac[row], several, away)
            world.free_at_s[row] = world.time_s[0] + took_s


@lean_kernel
def seconds_of(
    change: int,
    overheads: OverheadTable,
    with_it: float,
    beside: int,
    mem_req_frac: float,
    several: bool,
    elsewhere: bool,
) -> float:
    """Return the seconds that a change costs a job, of `several` tasks or one.

    `with_it`: the tasks that move at once, its own included, in tasks of its memory. `beside`: the tasks that run there
    meanwhile. `elsewhere`: a resume is on another node, which gets the image first.
    """
    penalties, beyond = overheads.penalties, overheads.beyond
    if change == RESUME:
        took_s = overhead_s(penalties, penalties.resume_s, with_it, mem_req_frac)
        more_s = beyond.more_resume_s if several else 0.0
        slower_s = (took_s + more_s) * beyond.beside_resume_frac * beside  # the transfer takes no longer
        if elsewhere:
            took_s += overhead_s(penalties, beyond.transfer_s, with_it, mem_req_frac)
        return took_s + more_s + slower_s
    if change == MIGRATION:
        took_s = overhead_s(penalties, penalties.migration_s, with_it, mem_req_frac)
        took_s += beyond.more_migration_s if several else 0.0
        return took_s * (1.0 + beyond.beside_resume_frac * beside)
    took_s = overhead_s(penalties, beyond.start_s, with_it, mem_req_frac)
    took_s += extra_start_s(overheads, mem_req_frac) if several else 0.0
    return took_s * (1.0 + beyond.beside_start_frac * beside)


@lean_kernel
def saving_s(overheads: OverheadTable, with_it: float, beside: int, mem_req_frac: float, several: bool) -> float:
    """Return the seconds of a save of a job, of `several` tasks or one; `with_it` and `beside` as for `seconds_of`."""
    took_s = overhead_s(overheads.penalties, overheads.beyond.save_s, with_it, mem_req_frac)
    took_s += overheads.beyond.more_save_s if several else 0.0
    return took_s * (1.0 + overheads.beyond.beside_save_frac * beside)


def move_costs_s(jobs: Sequence[Job], overheads: OverheadTable) -> Floats:
    """Return the seconds for which a move of all its tasks, and of no others, stops each job (J,), for policies.

    No other task runs meanwhile. Where concurrency counts per node, the tasks are expected on nodes of their own.
    """
    per_node = overheads.beyond.per_node
    return np.array([
        seconds_of(
            MIGRATION, overheads, 1.0 if per_node else float(job.tasks), 0, job.mem_req_frac, job.tasks > 1, False
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
def list_by_node(
    changed: int,
    active: Ints,
    overheads: OverheadTable,
    jobs: Jobs,
    cluster: Cluster,
    world: World,
    moves: PendingMoves,
) -> None:
    """List the tasks that leave each node by this decision, and those that come at a cost; count those that stay."""
    if overheads.beyond.crowds:
        count_staying(changed, active, overheads.beyond.per_node, jobs, cluster, world, moves)
    for node in range(moves.coming_at.size):
        moves.coming_at[node] = 0
        moves.leaving_at[node] = 0
    for listed in (False, True):  # first the numbers, whose sums are the places of the nodes; then the jobs
        for index in range(changed):
            change, row = world.change[index], world.changed_row[index]
            for task in range(jobs.offset[row], jobs.offset[row + 1]):
                left, reached = node_left(change, task, world), node_reached(change, task, world)
                if left != NOT_PLACED:
                    note(left, row, listed, moves.leaving_at, moves.leaving)
                if reached != NOT_PLACED and costs(change, overheads.beyond.starts):
                    note(reached, row, listed, moves.coming_at, moves.coming)
        if not listed:
            for node in range(1, moves.coming_at.size):
                moves.leaving_at[node] += moves.leaving_at[node - 1]
                moves.coming_at[node] += moves.coming_at[node - 1]


@lean_kernel
def note(node: int, row: int, listed: bool, place_of: Ints, rows: Ints) -> None:
    """Count a job at a node or, if its list ends at `place_of` (N + 1,), put it there, the last one first."""
    if listed:
        place_of[node] -= 1
        rows[place_of[node]] = row
    else:
        place_of[node] += 1


@lean_kernel
def like_it(row: int, other: int, jobs: Jobs) -> float:
    """Return for how many tasks of a job's memory a task of another job counts, while both move.

    They share the rate: a smaller task has moved its memory, and is gone, when the larger one has moved as much.
    """
    mem_frac, other_frac = jobs.mem_req_frac[row], jobs.mem_req_frac[other]
    return 1.0 if other_frac >= mem_frac else float(other_frac / mem_frac)


@lean_kernel
def at_node(row: int, node: int, place_of: Ints, rows: Ints, jobs: Jobs) -> float:
    """Return the number of listed tasks of a node, in tasks of a job's memory."""
    found = 0.0
    for place in range(place_of[node], place_of[node + 1]):
        found += like_it(row, rows[place], jobs)
    return found


@lean_kernel
def coming_with(
    index: int, changed: int, overheads: OverheadTable, jobs: Jobs, world: World, moves: PendingMoves
) -> float:  # fmt: skip
    """Return the number of tasks that come, at a cost, with a job, itself included, in tasks of its memory.

    They come to the new node of the job with the most of them, or to the cluster, as concurrency counts.
    """
    row, most = world.changed_row[index], 0.0
    if overheads.penalties.concurrent_tasks.size == 1:
        return 1.0
    if not overheads.beyond.per_node:
        for other in range(changed):
            if costs(world.change[other], overheads.beyond.starts):
                most += world.changed_tasks[other] * like_it(row, world.changed_row[other], jobs)
        return most
    for task in range(jobs.offset[row], jobs.offset[row + 1]):
        node = node_reached(world.change[index], task, world)
        if node != NOT_PLACED:
            most = max(most, at_node(row, node, moves.coming_at, moves.coming, jobs))
    return most


@lean_kernel
def leaving_with(
    row: int, node: int, changed: int, overheads: OverheadTable, jobs: Jobs, world: World, moves: PendingMoves
) -> float:  # fmt: skip
    """Return the number of tasks that leave a node, or any node, with a task of a job, in tasks of its memory."""
    if overheads.penalties.concurrent_tasks.size == 1:
        return 1.0
    if overheads.beyond.per_node:
        return at_node(row, node, moves.leaving_at, moves.leaving, jobs)
    found = 0.0
    for other in range(changed):
        if world.change[other] in (PREEMPTION, MIGRATION):
            found += world.changed_tasks[other] * like_it(row, world.changed_row[other], jobs)
    return found


@lean_kernel
def count_staying(
    changed: int, active: Ints, per_node: bool, jobs: Jobs, cluster: Cluster, world: World, moves: PendingMoves
) -> None:  # fmt: skip
    """Count the tasks of the jobs that this decision lets run where they are; rows are ascending, also of changes."""
    for node in range(moves.staying.size):
        moves.staying[node] = 0
    index = total = 0
    for row in active:
        if index < changed and world.changed_row[index] == row:
            index += 1
        elif cluster.running[row]:
            for task in range(jobs.offset[row], jobs.offset[row + 1]):
                moves.staying[cluster.task_node[task]] += 1
                total += 1
    if not per_node:
        for node in range(moves.staying.size):
            moves.staying[node] = total


@lean_kernel
def most_staying(index: int, jobs: Jobs, world: World, moves: PendingMoves) -> int:
    """Return the largest number of tasks that stay on one of the new nodes of a job."""
    row, most = world.changed_row[index], 0
    for task in range(jobs.offset[row], jobs.offset[row + 1]):
        node = node_reached(world.change[index], task, world)
        if node != NOT_PLACED:
            most = max(most, moves.staying[node])
    return int(most)


@lean_kernel
def leave(changed: int, overheads: OverheadTable, jobs: Jobs, world: World, moves: PendingMoves) -> None:
    """Let tasks leave their nodes: set until when they occupy memory there, and when paused jobs have their images."""
    beyond, time_s = overheads.beyond, world.time_s[0]
    forget_holds(time_s, moves)
    for index in range(changed):
        change, row = world.change[index], world.changed_row[index]
        if change not in (PREEMPTION, MIGRATION):
            continue
        if not has_begun(row, time_s, moves):
            moves.dropped[row] = True
            world.free_at_s[row] = time_s
            continue
        begin_s = max(time_s, world.free_at_s[row])
        until_s = begin_s
        several, mem_frac = jobs.offset[row + 1] - jobs.offset[row] > 1, jobs.mem_req_frac[row]
        for task in range(jobs.offset[row], jobs.offset[row + 1]):
            node = node_left(change, task, world)
            moves.held_on[task] = node
            if node == NOT_PLACED:
                continue
            with_it = leaving_with(row, node, changed, overheads, jobs, world, moves)
            beside = moves.staying[node] if beyond.crowds else 0
            took_s = saving_s(overheads, with_it, beside, mem_frac, several)
            if change == MIGRATION and beyond.by_copies:
                took_s = seconds_of(MIGRATION, overheads, with_it, beside, mem_frac, several, False)
            until_s = max(until_s, begin_s + took_s)
        moves.saved_at_s[row] = until_s
        hold(row, until_s, moves)


@lean_kernel
def has_begun(row: int, time_s: float, moves: PendingMoves) -> bool:
    """Whether the last operation on a job has begun; one that begins now has not."""
    return bool(not moves.dropped[row] and (moves.arrives_s[row] < time_s or moves.operation[row] == MIGRATION))


@lean_kernel
def forget_holds(time_s: float, moves: PendingMoves) -> None:
    """Forget the jobs whose tasks no longer occupy memory on nodes that they left."""
    kept = 0
    for place in range(moves.holds[0]):
        row = moves.holding[place]
        if moves.held_until_s[row] > time_s:
            moves.holding[kept] = row
            kept += 1
    moves.holds[0] = kept


@lean_kernel
def hold(row: int, until_s: float, moves: PendingMoves) -> None:
    """Note until when tasks of a job occupy memory on the nodes in `held_on`."""
    moves.held_until_s[row] = until_s
    for place in range(moves.holds[0]):
        if moves.holding[place] == row:
            return
    moves.holding[moves.holds[0]] = row
    moves.holds[0] += 1


@lean_kernel
def note_memory(
    changed: int, active: Ints, jobs: Jobs, cluster: Cluster, world: World, moves: PendingMoves
) -> None:  # fmt: skip
    """Write the memory in use of the tasks that stay on their nodes; rows are ascending, as are those that change."""
    for node in range(moves.used_frac.size):
        moves.used_frac[node] = 0.0
    index = 0
    for row in active:
        changes = index < changed and world.changed_row[index] == row
        if cluster.running[row]:
            for task in range(jobs.offset[row], jobs.offset[row + 1]):
                if not changes:
                    moves.used_frac[cluster.task_node[task]] += jobs.mem_req_frac[row]
                elif node_reached(world.change[index], task, world) == NOT_PLACED:
                    moves.used_frac[world.stands_on[task]] += jobs.mem_req_frac[row]
        if changes:
            index += 1


@lean_kernel
def arrive(
    index: int, changed: int, overheads: OverheadTable, jobs: Jobs, world: World, moves: PendingMoves
) -> None:  # fmt: skip
    """Begin the operation that brings a job to its new nodes as soon as they have memory for it."""
    row, change, beyond, time_s = world.changed_row[index], world.change[index], overheads.beyond, world.time_s[0]
    several, mem_frac = jobs.offset[row + 1] - jobs.offset[row] > 1, jobs.mem_req_frac[row]
    if moves.dropped[row]:  # what it replaces was never done
        change = START if moves.operation[row] == START else RESUME
    with_it = coming_with(index, changed, overheads, jobs, world, moves)
    beside = most_staying(index, jobs, world, moves) if beyond.crowds else 0
    took_s = 0.0
    if costs(change, beyond.starts):
        away = world.changed_away[index] > 0
        took_s = seconds_of(change, overheads, max(with_it, 1.0), beside, mem_frac, several, away)
    ready_s = max(time_s, moves.saved_at_s[row]) if change == RESUME else max(time_s, world.free_at_s[row])
    if change == START:
        ready_s = time_s
    elif change == MIGRATION and beyond.by_images:
        ready_s = max(time_s, moves.saved_at_s[row])
        took_s -= min(saving_s(overheads, with_it, beside, mem_frac, several), took_s)
    begin_s = room_at(index, ready_s, jobs, world, moves)
    if took_s > 0.0 or begin_s > time_s:
        world.free_at_s[row] = begin_s + took_s
    moves.arrives_s[row] = begin_s
    moves.operation[row] = change
    moves.dropped[row] = False
    if change == MIGRATION and beyond.by_copies:
        moves.held_until_s[row] = max(moves.held_until_s[row], world.free_at_s[row])


@lean_kernel
def room_at(index: int, ready_s: float, jobs: Jobs, world: World, moves: PendingMoves) -> float:
    """Return when all new nodes of a job have memory for it, from `ready_s` on; add its memory to that in use.

    Memory of a task that comes back to the node that it left is not counted twice.
    """
    row, begin_s = world.changed_row[index], ready_s
    for task in range(jobs.offset[row], jobs.offset[row + 1]):
        node = node_reached(world.change[index], task, world)
        if node != NOT_PLACED:
            moves.used_frac[node] += jobs.mem_req_frac[row]
            for other in range(jobs.offset[row], jobs.offset[row + 1]):
                if moves.held_on[other] == node:
                    moves.held_on[other] = NOT_PLACED
                    break
    for task in range(jobs.offset[row], jobs.offset[row + 1]):
        node = node_reached(world.change[index], task, world)
        if node != NOT_PLACED:
            begin_s = node_has_room(node, row, begin_s, jobs, moves)
    return begin_s


@lean_kernel
def node_has_room(node: int, row: int, from_s: float, jobs: Jobs, moves: PendingMoves) -> float:
    """Return from when on a node has memory for its tasks beside those of other jobs that have left it."""
    at_s = from_s
    while True:
        held_frac, next_s = 0.0, math.inf
        for place in range(moves.holds[0]):
            other = moves.holding[place]
            if other == row or moves.held_until_s[other] <= at_s:
                continue
            for task in range(jobs.offset[other], jobs.offset[other + 1]):
                if moves.held_on[task] == node:
                    held_frac += jobs.mem_req_frac[other]
                    next_s = min(next_s, moves.held_until_s[other])
        if held_frac == 0.0 or moves.used_frac[node] + held_frac <= CAPACITY_FRAC:
            return at_s
        at_s = next_s
