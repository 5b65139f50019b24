"""The state of a simulation beside the cluster of the policy: times, nodes and history of every job, and the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.scheduling.policies.capacity import offsets
from testbed.scheduling.policies.state import Cluster, Jobs, Mask
from testbed.scheduling.policies.view import NOT_PLACED, Floats, Ints
from testbed.scheduling.workload.jobs import Job

# Places in `World.counts`.
SUBMITTED = 0
ACTIVE = 1
LOGGED = 2
DECISIONS = 3
DECIDE_NS = 4
DECIDE_MAX_NS = 5
FAULT_ROW = 6
NODES_LOGGED = 7


class World(NamedTuple):
    """J jobs on N nodes; all arrays change in place. The first `counts[ACTIVE]` of `active` are jobs in the system."""

    time_s: Floats  # (1,) now
    counts: Ints  # (8,)
    run_time_s: Floats  # (J,)
    start_s: Floats  # (J,) NaN before the first start
    end_s: Floats  # (J,) NaN before the end
    expected_end_s: Floats  # (J,) of active rows, if no other event comes before
    free_at_s: Floats  # (J,) end of the last penalty
    penalty_s: Floats  # (J,) so far
    preemptions: Ints  # (J,)
    migrations: Ints  # (J,)
    tasks_moved: Ints  # (J,)
    active: Ints  # (J,) ascending rows
    rows: Ints  # (J,) 0 to J - 1
    ran: Mask  # (J,) `Cluster.running` after the last decision
    stood_on: Ints  # (sum of tasks,) the last nodes of each job, whether it runs or not, NOT_PLACED before its start
    stands_on: Ints  # (sum of tasks,) its new nodes, where the present decision changes them: tasks stay where they can
    changed_row: Ints  # (J,) the jobs that the present decision starts, pauses, resumes or moves come first
    change: Ints  # (J,) the kind of change of each of them
    changed_tasks: Ints  # (J,) how many tasks each change concerns
    changed_away: Ints  # (J,) how many of them resume on other nodes than before
    node_tasks: Ints  # (N,) scratch, zeros before and after each use
    node_sum: Floats  # (N,)
    clock: Ints  # (2,)


class PendingMoves(NamedTuple):
    """The state for overhead models beyond a table of penalties."""

    speed: Floats  # (J,) progress at the present yields, seconds of virtual time per second, if not the yield
    leaving: Ints  # (sum of tasks,) jobs of the tasks that leave by the present decision, node by node
    leaving_at: Ints  # (N + 1,) the place of each node's first one; the last place is their number
    coming: Ints  # (sum of tasks,) jobs of the tasks that come at a cost, node by node
    coming_at: Ints  # (N + 1,)
    staying: Ints  # (N,) how many tasks run there before and after it; without counts per node, in the cluster
    used_frac: Floats  # (N,) memory of the tasks that stay, and of those whose arrival is already known
    held_on: Ints  # (sum of tasks,) the node that a task left and still occupies, NOT_PLACED without one
    held_until_s: Floats  # (J,) until when the tasks of a job occupy these nodes
    holding: Ints  # (J,) the first `holds` are the jobs with such tasks
    holds: Ints  # (1,)
    saved_at_s: Floats  # (J,) when the images of the job are written
    arrives_s: Floats  # (J,) when the job has room on its nodes, so that its last operation begins there
    operation: Ints  # (J,) the kind of the last operation, of `testbed.scheduling.simulation.run`
    dropped: Mask  # (J,) whether the last operation never began, as the job was paused before


class Log(NamedTuple):
    """The log of changes to jobs, in order of time: the first `World.counts[LOGGED]` elements hold one entry each.

    Without `records` it has preemptions and migrations only, and the other columns are empty. With `records`, every
    decision has a first entry of the kind DECISION, and then one of each job that it starts, pauses, resumes or moves,
    or whose yield it changes, by row. `nodes` has the nodes, task by task, of every job that a START, RESUME or
    MIGRATION places, one after the other: `World.counts[NODES_LOGGED]` in all.
    """

    records: bool
    time_s: Floats
    row: Ints
    kind: Ints  # of `testbed.scheduling.simulation.run`
    tasks: Ints  # how many tasks are paused or move
    yield_frac: Floats
    free_at_s: Floats  # the end of the job's last penalty
    nodes: Ints
    last_yield_frac: Floats  # (J,) of the last entry of the job


def new_world(jobs: Sequence[Job], nodes: int) -> tuple[Jobs, Cluster, World]:
    """Return the state before the first submission; `jobs` are in order of submission."""
    size = len(jobs)
    offset = offsets(np.array([job.tasks for job in jobs], dtype=np.int64))
    submit_s = np.array([job.submit_time_s for job in jobs], dtype=np.float64)
    table = Jobs(
        submit_time_s=submit_s,
        offset=offset,
        cpu_need_frac=np.array([job.cpu_need_frac for job in jobs], dtype=np.float64),
        mem_req_frac=np.array([job.mem_req_frac for job in jobs], dtype=np.float64),
        weight=np.array([job.weight for job in jobs], dtype=np.float64),
        least_yield_frac=np.array([job.least_yield_frac for job in jobs], dtype=np.float64),
    )
    cluster = Cluster(
        node_available=np.ones(nodes, dtype=np.bool_),
        virtual_time_s=np.zeros(size),
        running=np.zeros(size, dtype=np.bool_),
        task_node=np.full(offset[-1], NOT_PLACED, dtype=np.int64),
        yield_frac=np.zeros(size),
    )
    world = World(
        time_s=submit_s[:1].copy(),
        counts=np.zeros(8, dtype=np.int64),
        run_time_s=np.array([job.run_time_s for job in jobs], dtype=np.float64),
        start_s=np.full(size, np.nan),
        end_s=np.full(size, np.nan),
        expected_end_s=np.full(size, np.inf),
        free_at_s=np.full(size, -np.inf),
        penalty_s=np.zeros(size),
        preemptions=np.zeros(size, dtype=np.int64),
        migrations=np.zeros(size, dtype=np.int64),
        tasks_moved=np.zeros(size, dtype=np.int64),
        active=np.zeros(size, dtype=np.int64),
        rows=np.arange(size, dtype=np.int64),
        ran=np.zeros(size, dtype=np.bool_),
        stood_on=np.full(offset[-1], NOT_PLACED, dtype=np.int64),
        stands_on=np.full(offset[-1], NOT_PLACED, dtype=np.int64),
        changed_row=np.zeros(size, dtype=np.int64),
        change=np.zeros(size, dtype=np.int64),
        changed_tasks=np.zeros(size, dtype=np.int64),
        changed_away=np.zeros(size, dtype=np.int64),
        node_tasks=np.zeros(nodes, dtype=np.int64),
        node_sum=np.zeros(nodes),
        clock=np.zeros(2, dtype=np.int64),
    )
    return table, cluster, world


def new_moves(jobs: Jobs, nodes: int) -> PendingMoves:
    """Return the state of moves before the first submission."""
    rows = jobs.submit_time_s.size
    return PendingMoves(
        speed=np.zeros(rows),
        leaving=np.zeros(jobs.offset[-1], dtype=np.int64),
        leaving_at=np.zeros(nodes + 1, dtype=np.int64),
        coming=np.zeros(jobs.offset[-1], dtype=np.int64),
        coming_at=np.zeros(nodes + 1, dtype=np.int64),
        staying=np.zeros(nodes, dtype=np.int64),
        used_frac=np.zeros(nodes),
        held_on=np.full(jobs.offset[-1], NOT_PLACED, dtype=np.int64),
        held_until_s=np.full(rows, -np.inf),
        holding=np.zeros(rows, dtype=np.int64),
        holds=np.zeros(1, dtype=np.int64),
        saved_at_s=np.full(rows, -np.inf),
        arrives_s=np.full(rows, -np.inf),
        operation=np.zeros(rows, dtype=np.int64),
        dropped=np.zeros(rows, dtype=np.bool_),
    )


def new_log(jobs: Jobs, *, records: bool) -> Log:
    """Return an empty log."""
    rows = jobs.submit_time_s.size
    size = 4 * rows + 64
    recorded = size if records else 0
    return Log(
        records=records,
        time_s=np.empty(size),
        row=np.empty(size, dtype=np.int64),
        kind=np.empty(size, dtype=np.int64),
        tasks=np.empty(size, dtype=np.int64),
        yield_frac=np.empty(recorded),
        free_at_s=np.empty(recorded),
        nodes=np.empty(2 * jobs.offset[-1] if records else 0, dtype=np.int64),
        last_yield_frac=np.zeros(rows if records else 0),
    )


def with_room(log: Log, world: World, jobs: Jobs) -> Log:
    """Return the log, extended if the next decision might not fit."""
    rows, tasks = jobs.submit_time_s.size, int(jobs.offset[-1])
    longer: dict[str, Any] = {}
    if world.counts[LOGGED] + rows + 1 > log.row.size:
        names = ("time_s", "row", "kind", "tasks") + (("yield_frac", "free_at_s") if log.records else ())
        longer = {name: _longer(getattr(log, name), rows + 1) for name in names}
    if log.records and world.counts[NODES_LOGGED] + tasks > log.nodes.size:
        longer["nodes"] = _longer(log.nodes, tasks)
    return log._replace(**longer)


def _longer(column: NDArray[Any], more: int) -> NDArray[Any]:
    """Return a copy of the column with more than twice its length."""
    out = np.empty(2 * column.size + more, dtype=column.dtype)
    out[: column.size] = column
    return out
