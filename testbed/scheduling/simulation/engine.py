"""The event loop: exact event times, one decision per instant, virtual times between them [RR 2.2, 5.2].

At one instant come completions, submissions, the periodic pass, and then the one decision. Jobs that the decision
resumes or moves make no progress during the penalty, but hold CPU and memory. Their virtual time stands still, and the
policy does not know the reason. Virtual time is work that is done, in seconds on dedicated nodes: it grows with the
yield, or at the rate that an overhead model has for that yield. The next event is the first of: a submission, a
multiple of the period (none while the cluster is empty), a completion, and an instant at which the policy tries again.

The loop is the same for all policies. `event_loop` replaces `decide` and `next_wake_s` by a policy's kernels, and the
result can be compiled. `testbed.scheduling.simulation.views` replaces them by methods for any other policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from testbed.scheduling.compiler import bound, clock_ns, kernel, lean_kernel
from testbed.scheduling.policies.kernel_policy import Kernels
from testbed.scheduling.policies.state import Cluster, Jobs, Mask
from testbed.scheduling.policies.view import NOT_PLACED, Floats, Ints
from testbed.scheduling.simulation.moving import begin_moves, note_changes, note_speeds
from testbed.scheduling.simulation.overheads import OverheadTable
from testbed.scheduling.simulation.run import DECISION, MIGRATION, PREEMPTION, SHARE
from testbed.scheduling.simulation.soundness import (
    BEGUN_TOO_EARLY,
    SOUND,
    arrivals_are_sound,
    check_decision,
    check_end,
)
from testbed.scheduling.simulation.world import (
    ACTIVE,
    DECIDE_MAX_NS,
    DECIDE_NS,
    DECISIONS,
    FAULT_ROW,
    LOGGED,
    NODES_LOGGED,
    SUBMITTED,
    Log,
    PendingMoves,
    World,
)

# What `run_events` returns, beside the faults of `testbed.scheduling.simulation.soundness`.
FINISHED = -1
PAUSED = -2  # call again: enough events for now, or the log is nearly full
STUCK = -3  # no event is left, but jobs are in the system


@kernel
def decide(
    rules: Any, jobs: Jobs, cluster: Cluster, time_s: float, active: Ints, submitted: Ints, freed: bool, periodic: bool
) -> None:
    """Placeholder for the policy's kernel: see `testbed.scheduling.policies.kernel_policy`."""
    raise NotImplementedError


@lean_kernel
def next_wake_s(rules: Any, submit_time_s: Floats, running: Mask, time_s: float, active: Ints) -> float:
    """Placeholder for the policy's kernel: see `testbed.scheduling.policies.kernel_policy`."""
    raise NotImplementedError


def event_loop(kernels: Kernels) -> Callable[..., int]:
    """Return `run_events` with the kernels of a policy: a kernel that `compiled` may compile."""
    return bound(run_events, **kernels._asdict())


@kernel
def run_events(
    rules: Any,
    period_s: float,
    overheads: OverheadTable,
    jobs: Jobs,
    cluster: Cluster,
    world: World,
    moves: PendingMoves,
    log: Log,
    most: int,
    debug: bool,
) -> int:
    """Run at most `most` events; return FINISHED, PAUSED, STUCK or, with `debug`, a fault of soundness."""
    count = world.counts
    speed = moves.speed if overheads.beyond.bends else cluster.yield_frac
    in_full = overheads.beyond.any or log.records
    active = world.active[: count[ACTIVE]]
    for _ in range(most):
        if not has_room(count, world.rows.size, jobs.offset[world.rows.size], log.time_s.size, log.nodes.size):
            return PAUSED
        tick_s = next_tick_s(period_s, jobs, world)
        wake_s = next_wake_s(rules, jobs.submit_time_s, cluster.running, world.time_s[0], active)
        time_s = min(next_event_s(jobs, cluster, world, speed, tick_s), wake_s)
        if time_s == math.inf:
            return FINISHED if count[ACTIVE] == 0 else STUCK
        advance(cluster, world, speed, time_s)
        ended = complete(jobs, cluster, world, debug)
        if ended < 0:
            return -ended
        first = count[SUBMITTED]
        submit(jobs, world)
        active = world.active[: count[ACTIVE]]
        if active.size == 0:
            continue
        before_ns = clock_ns(world.clock)
        decide(rules, jobs, cluster, time_s, active, world.rows[first : count[SUBMITTED]], ended > 0, time_s == tick_s)
        took_ns = clock_ns(world.clock) - before_ns
        count[DECISIONS] += 1
        count[DECIDE_NS] += took_ns
        count[DECIDE_MAX_NS] = max(count[DECIDE_MAX_NS], took_ns)
        fault, row = check_decision(active, jobs, cluster, world.node_sum) if debug else (SOUND, NOT_PLACED)
        if fault != SOUND:
            count[FAULT_ROW] = row
            return fault
        if overheads.beyond.bends:
            note_speeds(active, overheads.beyond, jobs, cluster, speed)
        changed = note_changes(active, in_full, jobs, cluster, world)
        if changed == 0 and not log.records:
            continue
        begin_moves(changed, active, overheads, jobs, cluster, world, moves)
        if debug and not arrivals_are_sound(changed, overheads.beyond.by_copies, jobs, world, moves):
            return BEGUN_TOO_EARLY
        log_changes(active, changed, in_full, jobs, cluster, world, log)
    return PAUSED


@lean_kernel
def has_room(count: Ints, rows: int, tasks: int, entries: int, nodes: int) -> bool:
    """Whether a log of `entries` entries and, unless it records none, `nodes` nodes has space for another decision."""
    if count[LOGGED] + count[ACTIVE] + rows - count[SUBMITTED] + 1 > entries:
        return False
    return bool(nodes == 0 or count[NODES_LOGGED] + tasks <= nodes)


@lean_kernel
def next_tick_s(period_s: float, jobs: Jobs, world: World) -> float:
    """Return the next multiple of the period after now; without active jobs, the first from the next submission on."""
    if period_s <= 0.0:
        return math.inf
    time_s = world.time_s[0]
    if world.counts[ACTIVE] > 0:
        # One less than the quotient, which may have been rounded up to the next integer.
        multiple = math.floor(time_s / period_s) - 1
        while multiple * period_s <= time_s:
            multiple += 1
        return float(multiple * period_s)
    if world.counts[SUBMITTED] == world.rows.size:
        return math.inf
    submit_s = jobs.submit_time_s[world.counts[SUBMITTED]]
    multiple = math.floor(submit_s / period_s) - 1
    while multiple * period_s < submit_s:
        multiple += 1
    return float(multiple * period_s)


@lean_kernel
def next_event_s(jobs: Jobs, cluster: Cluster, world: World, speed_of: Floats, tick_s: float) -> float:
    """Return the instant of the next submission, completion or pass, infinite if there is none.

    Write the expected ends of active jobs.
    """
    now_s = world.time_s[0]
    first_s = tick_s
    if world.counts[SUBMITTED] < world.rows.size:
        first_s = min(first_s, jobs.submit_time_s[world.counts[SUBMITTED]])
    for index in range(world.counts[ACTIVE]):
        row = world.active[index]
        end_s = math.inf
        speed = speed_of[row]
        if speed > 0.0:
            left_s = max(world.run_time_s[row] - cluster.virtual_time_s[row], 0.0)
            end_s = max(now_s, world.free_at_s[row]) + left_s / speed
            first_s = min(first_s, end_s)
        world.expected_end_s[row] = end_s
    return float(first_s)


@lean_kernel
def advance(cluster: Cluster, world: World, speed_of: Floats, time_s: float) -> None:
    """Advance the time to `time_s`: jobs progress at `speed_of` (J,), their yields, after their penalties."""
    now_s = world.time_s[0]
    for index in range(world.counts[ACTIVE]):
        row = world.active[index]
        if cluster.running[row]:
            from_s = max(now_s, world.free_at_s[row])
            if from_s < time_s:
                cluster.virtual_time_s[row] += speed_of[row] * (time_s - from_s)
                world.penalty_s[row] += from_s - now_s
            else:
                world.penalty_s[row] += time_s - now_s
    world.time_s[0] = time_s


@lean_kernel
def complete(jobs: Jobs, cluster: Cluster, world: World, debug: bool) -> int:
    """Remove jobs that end now from the system; return their number, or with `debug` the negative of a fault."""
    time_s = world.time_s[0]
    kept = 0
    for index in range(world.counts[ACTIVE]):
        row = world.active[index]
        if world.expected_end_s[row] > time_s:
            world.active[kept] = row
            kept += 1
            continue
        if debug:
            fault = check_end(cluster.virtual_time_s[row], world.run_time_s[row])
            if fault != SOUND:
                world.counts[FAULT_ROW] = row
                return -fault
        world.end_s[row] = time_s
        cluster.virtual_time_s[row] = world.run_time_s[row]
        cluster.yield_frac[row] = 0.0
        cluster.running[row] = False
        for task in range(jobs.offset[row], jobs.offset[row + 1]):
            cluster.task_node[task] = NOT_PLACED
    ended = world.counts[ACTIVE] - kept
    world.counts[ACTIVE] = kept
    return int(ended)


@lean_kernel
def submit(jobs: Jobs, world: World) -> None:
    """Add jobs that are submitted by now to the system."""
    count = world.counts
    while count[SUBMITTED] < world.rows.size and jobs.submit_time_s[count[SUBMITTED]] <= world.time_s[0]:
        world.active[count[ACTIVE]] = count[SUBMITTED]
        count[ACTIVE] += 1
        count[SUBMITTED] += 1


@lean_kernel
def log_changes(
    active: Ints, changed: int, in_full: bool, jobs: Jobs, cluster: Cluster, world: World, log: Log
) -> None:
    """Count and log the changes of a decision, and store its map for comparison with the next one."""
    if log.records:
        record_decision(active, changed, jobs, cluster, world, log)
    for index in range(changed):
        change, row = world.change[index], world.changed_row[index]
        if change == PREEMPTION:
            world.preemptions[row] += 1
        elif change == MIGRATION:
            world.migrations[row] += 1
        if change in (PREEMPTION, MIGRATION):
            world.tasks_moved[row] += world.changed_tasks[index]
            if not log.records:
                note(change, row, world.changed_tasks[index], world.time_s[0], world.counts, log)
        if in_full and change != PREEMPTION:
            for task in range(jobs.offset[row], jobs.offset[row + 1]):
                world.stood_on[task] = world.stands_on[task]


@lean_kernel
def record_decision(active: Ints, changed: int, jobs: Jobs, cluster: Cluster, world: World, log: Log) -> None:
    """Log all changes of a decision, in a log with `records`."""
    note(DECISION, NOT_PLACED, 0, world.time_s[0], world.counts, log)
    index = 0
    for row in active:
        if index < changed and world.changed_row[index] == row:
            change = world.change[index]
            tasks = world.changed_tasks[index] if change in (PREEMPTION, MIGRATION) else 0
            note(change, row, tasks, world.time_s[0], world.counts, log)
            record(row, change != PREEMPTION, jobs, cluster, world, log)
            index += 1
        elif cluster.yield_frac[row] != log.last_yield_frac[row]:
            note(SHARE, row, 0, world.time_s[0], world.counts, log)
            record(row, False, jobs, cluster, world, log)


@lean_kernel
def note(kind: int, row: int, tasks: int, time_s: float, count: Ints, log: Log) -> None:
    """Add an entry to the log."""
    logged = count[LOGGED]
    log.time_s[logged] = time_s
    log.row[logged] = row
    log.kind[logged] = kind
    log.tasks[logged] = tasks
    count[LOGGED] += 1


@lean_kernel
def record(row: int, with_nodes: bool, jobs: Jobs, cluster: Cluster, world: World, log: Log) -> None:
    """Write the columns of the last entry that only a log with `records` has, and the nodes of a placed job."""
    last = world.counts[LOGGED] - 1
    log.yield_frac[last] = cluster.yield_frac[row]
    log.free_at_s[last] = world.free_at_s[row]
    log.last_yield_frac[row] = cluster.yield_frac[row]
    if with_nodes:
        for task in range(jobs.offset[row], jobs.offset[row + 1]):
            log.nodes[world.counts[NODES_LOGGED]] = world.stands_on[task]
            world.counts[NODES_LOGGED] += 1
