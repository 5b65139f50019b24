"""Simulation of batch policies: whole nodes, no pauses or moves; a job ends a run time after its start.

At one instant completions come first, then submissions, then one decision, made by the kernels that decide for live
nodes as well (`testbed.scheduling.policies.backfill`).

If first starts have a cost in the overhead model, a job holds its nodes for this cost and its run time. EASY does not
know the cost: it expects a job to end at its start plus its estimate, or at once when this time has passed. So
reservations are slightly early, and backfilled jobs may delay the head of the queue by as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from testbed.errors import UserError
from testbed.scheduling.compiler import clock_ns, kernel, lean_kernel
from testbed.scheduling.policies.backfill import BatchJobs, QueuePolicy, insert, remove, start_jobs, take_lowest
from testbed.scheduling.policies.capacity import offsets
from testbed.scheduling.policies.state import Mask
from testbed.scheduling.policies.view import NOT_PLACED, Floats, Ints
from testbed.scheduling.simulation.compiling import AT_ONCE, Compiling
from testbed.scheduling.simulation.overheads import OverheadTable, constant, extra_start_s, overhead_s, progress_rate
from testbed.scheduling.simulation.run import DECISION, START, Recording, SimulatedRun
from testbed.scheduling.workload.jobs import Job

NO_OVERHEADS = constant(0.0).table(1.0)

# Places in `Machine.counters`.
SUBMITTED = 0
STARTED = 1
ENDED = 2
FREE = 3
LOWEST = 4  # no node below it is free


class Machine(NamedTuple):
    """The state of a simulation of J jobs on N nodes."""

    counters: Ints  # (5,)
    submit_time_s: Floats  # (J,), not decreasing
    run_time_s: Floats  # (J,)
    end_s: Floats  # (J,) of jobs that started
    offset: Ints  # (J + 1,)
    task_node: Ints  # (sum of tasks,)
    node_free: Mask  # (N,)
    queue: Ints  # (J,) rows in order of start, then waiting rows, then future rows, by submission
    penalty_s: Floats  # (J,) seconds before the first progress, of jobs that started
    mem_req_frac: Floats  # (J,), empty where starts are free
    running: Ints  # (N,) running rows, the latest end first
    ending: Ints  # (N,) the same by expected end, with backfilling only


@dataclass(frozen=True, slots=True, eq=False)
class BatchSchedule:
    """The nodes and times at which J jobs ran."""

    start_s: Floats  # (J,) trace seconds
    end_s: Floats  # (J,)
    penalty_s: Floats  # (J,) costs of first starts
    task_node: Ints  # (sum of tasks,) row after row; under batch policies the lowest nodes that were free
    decisions: int
    decide_total_s: float  # wall time of all decisions
    decide_max_s: float  # wall time of the longest one


def simulate_batch(
    jobs: Sequence[Job],
    nodes: int,
    policy: QueuePolicy,
    compiling: Compiling = AT_ONCE,
    *,
    overheads: OverheadTable = NO_OVERHEADS,
    record: bool = False,
) -> SimulatedRun:
    """Run `jobs`, sorted by submission, on `nodes` nodes under FCFS or EASY.

    Raises UserError, as `schedule_batch` does.
    """
    done = schedule_batch(jobs, nodes, policy, compiling, overheads=overheads)
    return undisturbed_run(policy.name, nodes, jobs, done, record=record)


def undisturbed_run(policy: str, nodes: int, jobs: Sequence[Job], done: BatchSchedule, *, record: bool) -> SimulatedRun:
    """Return the run of a schedule in which jobs stay where they start; `record` keeps its decisions."""
    return SimulatedRun.undisturbed(
        policy, nodes, tuple(jobs), done.start_s, done.end_s, penalty_s=done.penalty_s,
        decisions=done.decisions, decide_total_s=done.decide_total_s, decide_max_s=done.decide_max_s,
        recording=_recording(jobs, done) if record else None,
    )  # fmt: skip


def _recording(jobs: Sequence[Job], done: BatchSchedule) -> Recording:
    """Return the starts, and the decisions at submissions and ends except the last end; ends are not recorded."""
    tasks = np.array([job.tasks for job in jobs], dtype=np.int64)
    decided_s = np.union1d([job.submit_time_s for job in jobs], done.end_s)
    decided_s = decided_s[decided_s < done.end_s.max()]
    time_s = np.concatenate((decided_s, done.start_s))
    row = np.concatenate((np.full(decided_s.size, NOT_PLACED), np.arange(len(jobs))))
    order = np.lexsort((row, time_s))
    rows = row[order]
    begins = rows != NOT_PLACED
    places = np.split(done.task_node, np.cumsum(tasks)[:-1])
    return Recording(
        time_s=time_s[order],
        row=rows,
        kind=np.where(begins, START, DECISION),
        yield_frac=begins.astype(np.float64),
        free_at_s=np.where(begins, time_s[order] + done.penalty_s[rows], -np.inf),
        nodes=np.concatenate([places[each] for each in rows[begins]]),
    )


def schedule_batch(
    jobs: Sequence[Job],
    nodes: int,
    policy: QueuePolicy,
    compiling: Compiling = AT_ONCE,
    *,
    overheads: OverheadTable = NO_OVERHEADS,
) -> BatchSchedule:
    """Return the schedule of `jobs`, sorted by submission, with the nodes of every task.

    Raises UserError when there is no node, when a job has more tasks than there are nodes, or when jobs are not in
    order of submission.
    """
    machine, batch = _machine(jobs, nodes)
    if overheads.beyond.bends:  # rates of progress at yield 1, which may differ from 1 in a model
        rates = [progress_rate(overheads.beyond, job.tasks, 1.0) for job in jobs]
        machine = machine._replace(run_time_s=machine.run_time_s / np.array(rates))
    if overheads.beyond.starts:
        machine = machine._replace(mem_req_frac=np.array([job.mem_req_frac for job in jobs], dtype=np.float64))
    run = compiling.begin_batch(run_to_end, len(jobs))
    decisions, total_ns, max_ns = run(*policy.queue_rules, overheads, machine, batch)
    return BatchSchedule(
        batch.start_time_s, machine.end_s, machine.penalty_s, machine.task_node,
        decisions, total_ns / 1e9, max_ns / 1e9,
    )  # fmt: skip


@kernel
def run_to_end(
    backfill: bool, before_shadow: bool, overheads: OverheadTable, machine: Machine, jobs: BatchJobs
) -> tuple[int, int, int]:
    """Simulate until all jobs have ended; return the number of decisions, their time and the longest one's, in ns."""
    count = machine.counters
    total = machine.submit_time_s.size
    scratch = np.zeros(2, dtype=np.int64)
    decisions, decide_ns, most_ns = 0, 0, 0
    while count[ENDED] < total:
        time_s = np.inf
        if count[SUBMITTED] < total:
            time_s = machine.submit_time_s[count[SUBMITTED]]
        if count[STARTED] > count[ENDED]:
            time_s = min(time_s, machine.end_s[machine.running[count[STARTED] - count[ENDED] - 1]])
        _complete(backfill, time_s, machine, jobs)
        while count[SUBMITTED] < total and machine.submit_time_s[count[SUBMITTED]] <= time_s:
            count[SUBMITTED] += 1
        queue = machine.queue[count[STARTED] : count[SUBMITTED]]
        running = count[STARTED] - count[ENDED]
        began_ns = clock_ns(scratch)
        started = start_jobs(backfill, before_shadow, time_s, count[FREE], queue, machine.ending, running, jobs)
        if overheads.beyond.starts:
            busy = machine.node_free.size - count[FREE]
            note_starts(queue[:started], busy, overheads, machine, jobs)
        for place in range(started):
            _place(queue[place], time_s, machine, running + place)
        took_ns = clock_ns(scratch) - began_ns
        count[STARTED] += started
        decisions += 1
        decide_ns += took_ns
        most_ns = max(most_ns, took_ns)
    return decisions, decide_ns, most_ns


@lean_kernel
def note_starts(started: Ints, busy: int, overheads: OverheadTable, machine: Machine, jobs: BatchJobs) -> None:
    """Set the costs of the first starts of one decision, when `busy` nodes of the cluster have a task already.

    A node has one task, so starts on a node never overlap, and are beside no other task.
    """
    beside = 0
    if not overheads.beyond.per_node:
        beside = busy
    for row in started:
        at_once = 1.0
        if not overheads.beyond.per_node and overheads.penalties.concurrent_tasks.size > 1:
            at_once = 0.0
            for other in started:
                at_once += jobs.tasks[other] * min(machine.mem_req_frac[other] / machine.mem_req_frac[row], 1.0)
        took_s = overhead_s(overheads.penalties, overheads.beyond.start_s, at_once, machine.mem_req_frac[row])
        if jobs.tasks[row] > 1:
            took_s += extra_start_s(overheads, machine.mem_req_frac[row])
        machine.penalty_s[row] = took_s * (1.0 + overheads.beyond.beside_start_frac * beside)


@lean_kernel
def _complete(backfill: bool, time_s: float, machine: Machine, jobs: BatchJobs) -> None:
    count = machine.counters
    while count[STARTED] > count[ENDED]:
        running = count[STARTED] - count[ENDED]
        row = machine.running[running - 1]
        if machine.end_s[row] > time_s:
            break
        if backfill:
            remove(machine.ending, running, jobs.expected_end_s, row)
        for task in range(machine.offset[row], machine.offset[row + 1]):
            node = machine.task_node[task]
            machine.node_free[node] = True
            count[LOWEST] = min(count[LOWEST], node)
        count[FREE] += jobs.tasks[row]
        count[ENDED] += 1


@lean_kernel
def _place(row: int, time_s: float, machine: Machine, running: int) -> None:
    count = machine.counters
    nodes = machine.task_node[machine.offset[row] : machine.offset[row + 1]]
    count[LOWEST] = take_lowest(machine.node_free, nodes, count[LOWEST])
    count[FREE] -= nodes.size
    machine.end_s[row] = time_s + machine.penalty_s[row] + machine.run_time_s[row]
    insert(machine.running, running, machine.end_s, row)


def _machine(jobs: Sequence[Job], nodes: int) -> tuple[Machine, BatchJobs]:
    if nodes < 1:
        raise UserError(f"nodes = {nodes}: expected at least 1")
    count = len(jobs)
    tasks = np.fromiter((job.tasks for job in jobs), np.int64, count)
    submit_time_s = np.fromiter((job.submit_time_s for job in jobs), np.float64, count)
    if (wide := np.flatnonzero(tasks > nodes)).size:
        job = jobs[wide[0]]
        raise UserError(f"job {job.job_id}: tasks = {job.tasks}: expected at most one for each of {nodes} nodes")
    if (early := np.flatnonzero(np.diff(submit_time_s) < 0)).size:
        job = jobs[early[0] + 1]
        raise UserError(f"job {job.job_id}: submit_time_s = {job.submit_time_s:g}: expected jobs by submission")
    offset = offsets(tasks)
    machine = Machine(
        counters=np.array([0, 0, 0, nodes, 0], dtype=np.int64),
        submit_time_s=submit_time_s,
        run_time_s=np.fromiter((job.run_time_s for job in jobs), np.float64, count),
        end_s=np.full(count, np.nan),
        offset=offset,
        task_node=np.full(offset[-1], NOT_PLACED, dtype=np.int64),
        node_free=np.ones(nodes, dtype=np.bool_),
        queue=np.arange(count, dtype=np.int64),
        penalty_s=np.zeros(count),
        mem_req_frac=np.zeros(0),
        running=np.zeros(nodes, dtype=np.int64),
        ending=np.zeros(nodes, dtype=np.int64),
    )
    estimate_s = np.fromiter((job.batch_estimate_s for job in jobs), np.float64, count)
    return machine, BatchJobs(tasks, estimate_s, np.full(count, np.nan), np.full(count, np.nan))
