"""The event loop: exact event times, one decision an instant, virtual times between them [RR 2.2, 5.2].

At one instant come completions, submissions, the periodic pass, and then the one decision. Jobs that the decision
resumes or moves make no progress for the penalty, while they hold CPU and memory; their virtual time stands still, and
the policy does not know why. Virtual time is work that is done, in seconds on dedicated nodes: it grows with the yield,
or as fast as an overhead model says that jobs progress at that yield. The next event is the first of: a submission, a
multiple of the period (none while the cluster is empty), a completion, and an instant at which the policy tries again.
"""

from __future__ import annotations

import math

from testbed.compiler import clock_ns, kernel, lean_kernel
from testbed.policies.decision import decide
from testbed.policies.ipdps import next_retry_s
from testbed.policies.state import Cluster, Jobs, Rules
from testbed.policies.view import NOT_PLACED, Floats, Ints
from testbed.simulation.moving import begin_moves, end_moves
from testbed.simulation.overheads import OverheadTable, PenaltyTable, overhead_s
from testbed.simulation.run import MIGRATION, PREEMPTION
from testbed.simulation.soundness import BEGUN_TOO_EARLY, SOUND, check_decision, check_end
from testbed.simulation.world import (
    ACTIVE,
    DECIDE_MAX_NS,
    DECIDE_NS,
    DECISIONS,
    FAULT_ROW,
    LOGGED,
    SUBMITTED,
    Log,
    Moving,
    World,
)

# What `run_events` returns, beside the faults of `testbed.simulation.soundness`.
FINISHED = -1
PAUSED = -2  # call again: enough events for now, or the log is nearly full
STUCK = -3  # nothing will happen any more, and there are jobs in the system

# World.change
_NOTHING = -1
_RESUME = 2


@kernel
def run_events(
    rules: Rules,
    overheads: OverheadTable,
    jobs: Jobs,
    cluster: Cluster,
    world: World,
    moving: Moving,
    log: Log,
    most: int,
    debug: bool,
) -> int:
    """Go on for at most `most` events; return FINISHED, PAUSED, STUCK or, with `debug`, a fault of soundness."""
    count = world.counts
    # Penalties alone, the model of the papers, go the short way: large tuples are not passed on.
    beyond = overheads.beyond.any
    speed = moving.speed if overheads.beyond.bends else cluster.yield_frac
    for _ in range(most):
        if count[LOGGED] + count[ACTIVE] + world.rows.size - count[SUBMITTED] > log.time_s.size:
            return PAUSED
        tick_s = next_tick_s(rules, jobs, world)
        time_s = next_event_s(rules, jobs, cluster, world, speed, tick_s)
        if time_s == math.inf:
            return FINISHED if count[ACTIVE] == 0 else STUCK
        advance(cluster, world, speed, time_s)
        ended = complete(jobs, cluster, world, debug)
        if ended < 0:
            return -ended
        first = count[SUBMITTED]
        submit(jobs, world)
        if count[ACTIVE] == 0:
            continue
        active = world.active[: count[ACTIVE]]
        before_ns = clock_ns(world.clock)
        decide(rules, jobs, cluster, time_s, active, world.rows[first : count[SUBMITTED]], ended > 0, time_s == tick_s)
        took_ns = clock_ns(world.clock) - before_ns
        count[DECISIONS] += 1
        count[DECIDE_NS] += took_ns
        count[DECIDE_MAX_NS] = max(count[DECIDE_MAX_NS], took_ns)
        if debug:
            fault, row = check_decision(active, jobs, cluster, world.node_sum)
            if fault != SOUND:
                count[FAULT_ROW] = row
                return fault
        if beyond:
            begin_moves(active, overheads, jobs, cluster, world, moving)
        note_changes(active, jobs, cluster, world)
        apply_changes(active, overheads.penalties, jobs, world, log)
        if beyond and not end_moves(active, jobs, world, moving, debug):
            return BEGUN_TOO_EARLY
    return PAUSED


@lean_kernel
def next_tick_s(rules: Rules, jobs: Jobs, world: World) -> float:
    """Return the next multiple of the period that is after now, or not before the next job if there is none now."""
    if rules.period_s <= 0.0:
        return math.inf
    time_s = world.time_s[0]
    if world.counts[ACTIVE] > 0:
        # One less than the quotient, which may have been rounded up to the next integer.
        multiple = math.floor(time_s / rules.period_s) - 1
        while multiple * rules.period_s <= time_s:
            multiple += 1
        return float(multiple * rules.period_s)
    if world.counts[SUBMITTED] == world.rows.size:
        return math.inf
    submit_s = jobs.submit_time_s[world.counts[SUBMITTED]]
    multiple = math.floor(submit_s / rules.period_s) - 1
    while multiple * rules.period_s < submit_s:
        multiple += 1
    return float(multiple * rules.period_s)


@lean_kernel
def next_event_s(
    rules: Rules, jobs: Jobs, cluster: Cluster, world: World, speed_of: Floats, tick_s: float
) -> float:  # fmt: skip
    """Return the instant of the next event, infinite if there is none; note when active jobs are expected to end."""
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
        elif rules.backs_off and not cluster.running[row]:
            first_s = min(first_s, next_retry_s(jobs.submit_time_s[row], now_s))
        world.expected_end_s[row] = end_s
    return float(first_s)


@lean_kernel
def advance(cluster: Cluster, world: World, speed_of: Floats, time_s: float) -> None:
    """Let the time until `time_s` pass: jobs progress at `speed_of` (J,), their yields, after their penalties."""
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
    """Take jobs that end now out of the system; return how many, or with `debug` the negative of a fault."""
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
    """Take jobs that are submitted by now into the system."""
    count = world.counts
    while count[SUBMITTED] < world.rows.size and jobs.submit_time_s[count[SUBMITTED]] <= world.time_s[0]:
        world.active[count[ACTIVE]] = count[SUBMITTED]
        count[ACTIVE] += 1
        count[SUBMITTED] += 1


@lean_kernel
def note_changes(active: Ints, jobs: Jobs, cluster: Cluster, world: World) -> None:
    """Compare the map with the one before: who started, was paused, resumed, or runs on other nodes."""
    for index in range(active.size):
        row = active[index]
        begin, end = jobs.offset[row], jobs.offset[row + 1]
        ran, runs = world.ran[row], cluster.running[row]
        change = _NOTHING
        tasks = end - begin
        if ran and runs:
            tasks = tasks_that_moved(begin, end, cluster, world)
            if tasks > 0:
                change = MIGRATION
        elif ran:
            change = PREEMPTION
        elif runs and not math.isnan(world.start_s[row]):
            change = _RESUME
        elif runs:
            world.start_s[row] = world.time_s[0]
        if ran or runs:
            for task in range(begin, end):
                world.stood_on[task] = cluster.task_node[task]
        world.ran[row] = runs
        world.change[index] = change
        world.changed_tasks[index] = tasks


@lean_kernel
def tasks_that_moved(begin: int, end: int, cluster: Cluster, world: World) -> int:
    """Return by how many tasks two multisets of nodes differ: tasks of a job are interchangeable."""
    same = True
    for task in range(begin, end):
        if world.stood_on[task] != cluster.task_node[task]:
            same = False
            break
    if same:
        return 0
    for task in range(begin, end):
        world.node_tasks[cluster.task_node[task]] += 1
    moved = 0
    for task in range(begin, end):
        node = world.stood_on[task]
        if world.node_tasks[node] > 0:
            world.node_tasks[node] -= 1
        else:
            moved += 1
    for task in range(begin, end):
        world.node_tasks[cluster.task_node[task]] = 0
    return moved


@lean_kernel
def apply_changes(active: Ints, overheads: PenaltyTable, jobs: Jobs, world: World, log: Log) -> None:
    """Count and log pauses and moves, and begin the penalties; all that is moved by one decision moves at once."""
    time_s = world.time_s[0]
    at_once = 0
    for index in range(active.size):
        if world.change[index] in (MIGRATION, _RESUME):
            at_once += world.changed_tasks[index]
    for index in range(active.size):
        change, tasks, row = world.change[index], world.changed_tasks[index], active[index]
        if change == _NOTHING:
            continue
        if change == _RESUME:
            took_s = overhead_s(overheads, overheads.resume_s, float(at_once), jobs.mem_req_frac[row])
            world.free_at_s[row] = time_s + took_s
            continue
        if change == MIGRATION:
            took_s = overhead_s(overheads, overheads.migration_s, float(at_once), jobs.mem_req_frac[row])
            world.free_at_s[row] = time_s + took_s
            world.migrations[row] += 1
        else:
            world.preemptions[row] += 1
        world.tasks_moved[row] += tasks
        logged = world.counts[LOGGED]
        log.time_s[logged] = time_s
        log.row[logged] = row
        log.kind[logged] = change
        log.tasks[logged] = tasks
        world.counts[LOGGED] += 1
