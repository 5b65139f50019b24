"""One decision of XGE on arrays: the kernel of live and simulated runs.

`testbed.scheduling.policies.xge` describes the rules.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from testbed.scheduling.compiler import kernel, lean_kernel
from testbed.scheduling.policies.capacity import CAPACITY_FRAC
from testbed.scheduling.policies.kernel_policy import JobColumns, RulesAndColumns
from testbed.scheduling.policies.placing import drop_lost, pause
from testbed.scheduling.policies.state import Cluster, Jobs, Mask
from testbed.scheduling.policies.view import Floats, Ints

_IDLE, _SERIAL, _PARALLEL = range(3)  # which slot of a node is active


class XgeRules(NamedTuple):
    """The numeric rules of the policy: see `testbed.scheduling.policies.xge.XgePolicy`."""

    parallel_frac: float
    lends: bool
    long_s: float


class Slots(NamedTuple):
    """The state of the nodes during a decision: booked CPU and memory, active slots, serial jobs."""

    partition: int  # number of nodes of the parallel partition, which come first
    cpu_frac: Floats  # (N,)
    mem_frac: Floats  # (N,) infinite on a node that is not available
    slot: Ints  # (N,)
    guests: Ints  # (N,) number of serial jobs
    all_long: Mask  # (N,) whether all of these are long
    room: Ints  # (N,) number of tasks of the job being placed that fit


@kernel
def decide(
    told: RulesAndColumns,
    jobs: Jobs,
    cluster: Cluster,
    time_s: float,  # noqa: ARG001 - the form of `Decide`
    active: Ints,
    submitted: Ints,  # noqa: ARG001
    freed: bool,  # noqa: ARG001
    periodic: bool,  # noqa: ARG001
) -> None:
    """Start, pause and resume jobs; a job whose nodes are lost returns to its queue."""
    drop_lost(jobs, cluster, active)
    nodes = cluster.node_available.size
    slots = Slots(
        round(told.rules.parallel_frac * nodes), np.zeros(nodes), np.zeros(nodes), np.zeros(nodes, dtype=np.int64),
        np.zeros(nodes, dtype=np.int64), np.ones(nodes, dtype=np.bool_), np.zeros(nodes, dtype=np.int64),
    )  # fmt: skip
    find_slots(told, jobs, cluster, active, slots)
    waits = start_parallel_jobs(told, jobs, cluster, active, slots)
    start_serial_jobs(told, jobs, cluster, active, told.rules.lends and not waits, slots)
    for row in active:
        cluster.yield_frac[row] = 1.0 if cluster.running[row] else 0.0


@lean_kernel
def find_slots(told: RulesAndColumns, jobs: Jobs, cluster: Cluster, active: Ints, slots: Slots) -> None:
    """Fill the arrays of nodes from the running jobs."""
    for node in range(slots.mem_frac.size):
        if not cluster.node_available[node]:
            slots.mem_frac[node] = np.inf
    for row in active:
        if cluster.running[row]:
            is_serial = jobs.offset[row + 1] - jobs.offset[row] == 1
            for task in range(jobs.offset[row], jobs.offset[row + 1]):
                book(row, cluster.task_node[task], is_serial, told, jobs, slots)


@lean_kernel
def book(row: int, node: int, is_serial: bool, told: RulesAndColumns, jobs: Jobs, slots: Slots) -> None:
    """Book a task on its node."""
    slots.cpu_frac[node] += jobs.cpu_need_frac[row]
    slots.mem_frac[node] += jobs.mem_req_frac[row]
    slots.slot[node] = _SERIAL if is_serial else _PARALLEL
    if is_serial:
        slots.guests[node] += 1
        # Without `long_s` estimates may be missing, and are NaN then.
        if told.rules.long_s > 0.0 and not told.columns.estimate_s[row] >= told.rules.long_s:
            slots.all_long[node] = False


@kernel
def start_parallel_jobs(told: RulesAndColumns, jobs: Jobs, cluster: Cluster, active: Ints, slots: Slots) -> bool:
    """Start parallel jobs as far as their queue allows; return whether one must wait."""
    waits = False
    for row in active:
        if cluster.running[row] or jobs.offset[row + 1] - jobs.offset[row] == 1:
            continue
        if waits and not told.columns.urgent[row]:
            continue
        if has_room(row, told.columns, jobs, slots):
            place_parallel(row, told, jobs, cluster, active, slots)
        else:
            waits = True
    return waits


@lean_kernel
def has_room(row: int, columns: JobColumns, jobs: Jobs, slots: Slots) -> bool:
    """Set `slots.room` to the tasks of a parallel job that fit on each node without serial jobs; whether all fit."""
    total = 0
    for node in range(slots.room.size):
        is_serial = slots.slot[node] == _SERIAL
        slots.room[node] = 0
        if node < slots.partition or (columns.urgent[row] and (not is_serial or slots.all_long[node])):
            cpu_frac, mem_frac = slots.cpu_frac[node], slots.mem_frac[node]
            if is_serial:
                cpu_frac, mem_frac = 0.0, 0.0
            slots.room[node] = room_beside(row, cpu_frac, mem_frac, jobs)
        total += slots.room[node]
    return bool(total >= jobs.offset[row + 1] - jobs.offset[row])


@lean_kernel
def room_beside(row: int, cpu_frac: float, mem_frac: float, jobs: Jobs) -> int:
    """Return how many tasks of a job fit on a node with this CPU and memory booked."""
    by_cpu = (CAPACITY_FRAC - cpu_frac) / jobs.cpu_need_frac[row]
    by_memory = (CAPACITY_FRAC - mem_frac) / jobs.mem_req_frac[row]
    room: int = math.floor(max(min(by_cpu, by_memory), 0.0))
    return room


@kernel
def place_parallel(
    row: int, told: RulesAndColumns, jobs: Jobs, cluster: Cluster, active: Ints, slots: Slots
) -> None:  # fmt: skip
    """Place a parallel job according to `slots.room`, and pause the serial jobs of nodes that it takes."""
    nodes = slots.room.size
    key = np.empty(nodes, dtype=np.int64)
    for node in range(nodes):
        key[node] = rank(node, slots) * (cluster.task_node.size + 1) + slots.guests[node]
    task = jobs.offset[row]
    for node in np.argsort(key, kind="mergesort"):
        if task == jobs.offset[row + 1]:
            break
        if slots.room[node] > 0 and slots.slot[node] == _SERIAL:
            pause_all(node, jobs, cluster, active, slots)
        for _ in range(min(slots.room[node], jobs.offset[row + 1] - task)):
            cluster.task_node[task] = node
            book(row, node, False, told, jobs, slots)
            task += 1
    cluster.running[row] = True


@lean_kernel
def rank(node: int, slots: Slots) -> int:
    """Return the rank of a node: a parallel job goes to nodes of lower rank first."""
    ours = node < slots.partition
    if slots.slot[node] == _PARALLEL:
        return 0
    if slots.slot[node] == _IDLE:
        return 1 if ours else 2
    return 3 if ours else 4


@lean_kernel
def pause_all(node: int, jobs: Jobs, cluster: Cluster, active: Ints, slots: Slots) -> None:
    """Pause all serial jobs of a node."""
    for row in active:
        if cluster.running[row] and cluster.task_node[jobs.offset[row]] == node:
            pause(row, jobs, cluster)
    slots.cpu_frac[node], slots.mem_frac[node] = 0.0, 0.0
    slots.slot[node], slots.guests[node], slots.all_long[node] = _IDLE, 0, True


@lean_kernel
def start_serial_jobs(
    told: RulesAndColumns, jobs: Jobs, cluster: Cluster, active: Ints, lends: bool, slots: Slots
) -> None:  # fmt: skip
    """Resume and start serial jobs until one must wait; jobs that have run before come first."""
    for turn in range(2):
        for row in active:
            if cluster.running[row] or jobs.offset[row + 1] - jobs.offset[row] > 1:
                continue
            if math.isnan(told.columns.start_time_s[row]) != (turn == 1):
                continue
            node = node_for_serial(row, lends, jobs, slots)
            if node < 0:
                return
            cluster.task_node[jobs.offset[row]] = node
            cluster.running[row] = True
            book(row, node, True, told, jobs, slots)


@lean_kernel
def node_for_serial(row: int, lends: bool, jobs: Jobs, slots: Slots) -> int:
    """Return a node with serial jobs, else an idle one, else one that is or can be lent; -1 if the job fits nowhere.

    Parallel jobs begin with the first nodes of their partition, so lending begins with its last ones.
    """
    idle = -1
    for node in range(slots.partition, slots.slot.size):
        if takes_serial(node, row, jobs, slots):
            if slots.slot[node] == _SERIAL:
                return node
            idle = node if idle < 0 else idle
    if idle >= 0 or not lends:
        return idle
    for node in range(slots.partition - 1, -1, -1):
        if takes_serial(node, row, jobs, slots):
            if slots.slot[node] == _SERIAL:
                return node
            idle = node if idle < 0 else idle
    return idle


@lean_kernel
def takes_serial(node: int, row: int, jobs: Jobs, slots: Slots) -> bool:
    """Whether a serial job fits on a node, and no parallel job is there."""
    if slots.slot[node] == _PARALLEL:
        return False
    return room_beside(row, slots.cpu_frac[node], slots.mem_frac[node], jobs) > 0
