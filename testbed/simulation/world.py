"""The state of a simulation beside the cluster of the policy: where every job stands, and what was done to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from testbed.policies.capacity import offsets
from testbed.policies.state import Cluster, Jobs, Mask
from testbed.policies.view import NOT_PLACED, Floats, Ints
from testbed.workload.jobs import Job

# Places in `World.counts`.
SUBMITTED = 0
ACTIVE = 1
LOGGED = 2
DECISIONS = 3
DECIDE_NS = 4
DECIDE_MAX_NS = 5
FAULT_ROW = 6


class World(NamedTuple):
    """J jobs on N nodes; all arrays change in place. The first `counts[ACTIVE]` of `active` are jobs in the system."""

    time_s: Floats  # (1,) now
    counts: Ints  # (7,)
    run_time_s: Floats  # (J,)
    start_s: Floats  # (J,) NaN before the first start
    end_s: Floats  # (J,) NaN before the end
    expected_end_s: Floats  # (J,) if nothing happens before; of active rows
    free_at_s: Floats  # (J,) end of the last penalty
    penalty_s: Floats  # (J,) so far
    preemptions: Ints  # (J,)
    migrations: Ints  # (J,)
    tasks_moved: Ints  # (J,)
    active: Ints  # (J,) ascending rows
    rows: Ints  # (J,) 0 to J - 1
    ran: Mask  # (J,) `Cluster.running` after the last decision
    stood_on: Ints  # (sum of tasks,) `Cluster.task_node` after the last decision
    change: Ints  # (J,) what the decision did to the active rows, by place in `active`
    changed_tasks: Ints  # (J,) and to how many tasks
    node_tasks: Ints  # (N,) zeros
    node_sum: Floats  # (N,)
    clock: Ints  # (2,)


class Moving(NamedTuple):
    """What overhead models beyond a table of penalties need to know; nothing else reads it."""

    speed: Floats  # (J,) progress at the present yields, seconds of virtual time a second, where it is not the yield
    left: Ints  # (sum of tasks,) the node that a task leaves by the present decision, or NOT_PLACED
    came_to: Ints  # (sum of tasks,) the node that it comes to, or NOT_PLACED
    leaving: Ints  # (N,) how many leave; zeros between decisions
    coming: Ints  # (N,) how many come, of those that cost anything; zeros between decisions
    held_until_s: Floats  # (N,) when the last image of who left is written
    saved_at_s: Floats  # (J,) when the images of the job are
    free_at_s: Floats  # (J,) for `World`, of active rows: -infinite where the present decision changes nothing


class Log(NamedTuple):
    """Preemptions and migrations in order of time: the first `World.counts[LOGGED]` elements hold one each."""

    time_s: Floats
    row: Ints
    kind: Ints
    tasks: Ints


def new_world(jobs: Sequence[Job], nodes: int) -> tuple[Jobs, Cluster, World, Log]:
    """Return the state before the first submission; `jobs` are in order of submission."""
    size = len(jobs)
    offset = offsets(np.array([job.tasks for job in jobs], dtype=np.int64))
    submit_s = np.array([job.submit_time_s for job in jobs], dtype=np.float64)
    table = Jobs(
        submit_time_s=submit_s,
        offset=offset,
        cpu_need_frac=np.array([job.cpu_need_frac for job in jobs], dtype=np.float64),
        mem_req_frac=np.array([job.mem_req_frac for job in jobs], dtype=np.float64),
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
        counts=np.zeros(7, dtype=np.int64),
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
        change=np.zeros(size, dtype=np.int64),
        changed_tasks=np.zeros(size, dtype=np.int64),
        node_tasks=np.zeros(nodes, dtype=np.int64),
        node_sum=np.zeros(nodes),
        clock=np.zeros(2, dtype=np.int64),
    )
    return table, cluster, world, new_log(4 * size + 64)


def new_moving(jobs: Jobs, nodes: int) -> Moving:
    """Return the state of moves before the first submission."""
    rows, tasks = jobs.submit_time_s.size, int(jobs.offset[-1])
    return Moving(
        speed=np.zeros(rows),
        left=np.full(tasks, NOT_PLACED, dtype=np.int64),
        came_to=np.full(tasks, NOT_PLACED, dtype=np.int64),
        leaving=np.zeros(nodes, dtype=np.int64),
        coming=np.zeros(nodes, dtype=np.int64),
        held_until_s=np.full(nodes, -np.inf),
        saved_at_s=np.full(rows, -np.inf),
        free_at_s=np.full(rows, -np.inf),
    )


def new_log(size: int) -> Log:
    """Return an empty log for `size` events."""
    return Log(
        time_s=np.empty(size),
        row=np.empty(size, dtype=np.int64),
        kind=np.empty(size, dtype=np.int64),
        tasks=np.empty(size, dtype=np.int64),
    )


def longer(log: Log) -> Log:
    """Return the log with twice its room."""
    out = new_log(2 * log.row.size)
    for column, wider in zip(log, out, strict=True):
        wider[: column.size] = column
    return out
