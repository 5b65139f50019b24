"""Selects jobs to start on whole nodes: FCFS and EASY backfilling as kernels, for live and simulated runs.

The shadow time is the first instant at which enough nodes will be free for the head of the queue, according to the
expected ends of running jobs. The extra nodes are the nodes that are free at that instant beyond the head's.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeGuard

import numpy as np

from testbed.scheduling.compiler import lean_kernel
from testbed.scheduling.policies.state import Mask
from testbed.scheduling.policies.view import Floats, Ints, Policy


class QueueRules(NamedTuple):
    """The rules of FCFS and EASY."""

    backfill: bool  # jobs may overtake the head of the queue, on the extra nodes
    before_shadow: bool  # and also if they end by the shadow time


class QueuePolicy(Policy, Protocol):
    """A policy of whole nodes whose every decision is one call of `start_jobs` with its rules."""

    @property
    def queue_rules(self) -> QueueRules:
        """The rules."""


def is_queue(policy: Policy) -> TypeGuard[QueuePolicy]:
    """Whether a policy declares that it is only a queue for whole nodes."""
    return isinstance(getattr(policy, "queue_rules", None), QueueRules)


class BatchJobs(NamedTuple):
    """J rows; the expected end is read for rows in `ending`, the start time for rows in the queue."""

    tasks: Ints  # (J,) = nodes
    estimate_s: Floats  # (J,), not read without backfilling
    start_time_s: Floats  # (J,) first start, NaN before it
    expected_end_s: Floats  # (J,) first start plus estimate


@lean_kernel
def start_jobs(
    backfill: bool,
    before_shadow: bool,
    time_s: float,
    free: int,
    queue: Ints,
    ending: Ints,
    running: int,
    jobs: BatchJobs,
) -> int:
    """Start the jobs that may start and return their number; they come first in `queue` (W,), in the order of starts.

    The jobs that continue to wait follow in their order. `free` is the number of free nodes. `ending[:running]` are the
    running rows, the latest expected end first. With `backfill` the started rows are added to them, so `ending` needs
    one element per node. `jobs.start_time_s` is set for jobs that never ran before.
    """
    started = 0
    while started < queue.size and jobs.tasks[queue[started]] <= free:
        row = queue[started]
        free -= jobs.tasks[row]
        _begin(backfill, time_s, row, ending, running + started, jobs)
        started += 1
    if not backfill or started == queue.size or free == 0:
        return started
    shadow_s, extra = reservation(jobs.tasks[queue[started]], free, time_s, ending, running + started, jobs)
    for place in range(started + 1, queue.size):
        row = queue[place]
        tasks = jobs.tasks[row]
        if tasks > free:
            continue
        if not (before_shadow and time_s + jobs.estimate_s[row] <= shadow_s):
            if tasks > extra:
                continue
            extra -= tasks
        for behind in range(place, started, -1):
            queue[behind] = queue[behind - 1]
        queue[started] = row
        _begin(backfill, time_s, row, ending, running + started, jobs)
        started += 1
        free -= tasks
        if free == 0:
            break
    return started


@lean_kernel
def reservation(tasks: int, free: int, time_s: float, ending: Ints, running: int, jobs: BatchJobs) -> tuple[float, int]:
    """Return the shadow time of a queue head that needs `tasks` nodes, and the number of extra nodes.

    A job whose expected end has passed is expected to end now. All jobs that end at exactly the shadow time count. If
    the head does not fit even when all have ended (nodes are missing), there is no reservation to protect, and the
    time is infinite.
    """
    at_end = free
    place = running - 1
    while place >= 0:
        end_s = max(jobs.expected_end_s[ending[place]], time_s)
        while place >= 0 and jobs.expected_end_s[ending[place]] <= end_s:
            at_end += jobs.tasks[ending[place]]
            place -= 1
        if at_end >= tasks:
            return end_s, at_end - tasks
    return np.inf, 0


@lean_kernel
def insert(order: Ints, count: int, end_s: Floats, row: int) -> None:
    """Add `row` to `order[:count]`, rows by decreasing `end_s` (J,): the next end is last, where changes are cheap."""
    place = _first_place(order, count, end_s, row)
    for behind in range(count, place, -1):
        order[behind] = order[behind - 1]
    order[place] = row


@lean_kernel
def remove(order: Ints, count: int, end_s: Floats, row: int) -> None:
    """Remove `row` from `order[:count]`, rows by decreasing `end_s` (J,)."""
    place = _first_place(order, count, end_s, row)
    while order[place] != row:  # among rows with the same end
        place += 1
    for behind in range(place, count - 1):
        order[behind] = order[behind + 1]


@lean_kernel
def take_lowest(node_free: Mask, nodes: Ints, begin: int) -> int:
    """Write the lowest free nodes to `nodes`, and mark them as not free; return the node after the last of them.

    No node below `begin` may be free, and at least `nodes.size` nodes must be.
    """
    node = begin
    for task in range(nodes.size):
        while not node_free[node]:
            node += 1
        node_free[node] = False
        nodes[task] = node
        node += 1
    return node


@lean_kernel
def _begin(backfill: bool, time_s: float, row: int, ending: Ints, running: int, jobs: BatchJobs) -> None:
    if np.isnan(jobs.start_time_s[row]):
        jobs.start_time_s[row] = time_s
    if backfill:
        jobs.expected_end_s[row] = jobs.start_time_s[row] + jobs.estimate_s[row]
        insert(ending, running, jobs.expected_end_s, row)


@lean_kernel
def _first_place(order: Ints, count: int, end_s: Floats, row: int) -> int:
    """Return the first place whose row ends no later than `row`."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if end_s[order[middle]] > end_s[row]:
            low = middle + 1
        else:
            high = middle
    return low
