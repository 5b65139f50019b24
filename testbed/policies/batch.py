"""Batch baselines: whole nodes, one job a node, yield 1 [RR 5.2].

FCFS starts jobs in order of submission. EASY gives the head of the queue a reservation at the shadow time,
the first instant at which enough nodes will be free, and lets later jobs go ahead that do not delay it: those
that end by the shadow time, and those that fit beside the head (into the extra nodes). Completions are in the
view already, so one pass over the queue serves completions and submissions of one instant alike.

A running job is expected to end at its first start plus its estimate. If that has passed (the estimate was
short, or the job lost its nodes and was started again), it is expected to end now. A job whose nodes became
unavailable goes back to its place in the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.policies.capacity import CAPACITY_FRAC, offsets
from testbed.policies.moves import keep_places
from testbed.policies.view import NOT_PLACED, ClusterView, Decision, Event, Floats, Ints, JobState


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """FCFS, or EASY in one of two forms.

    `backfill` lets jobs go ahead of the head. `before_shadow` lets them also if they end by the shadow time:
    canonical EASY. Without it a job goes ahead only into the extra nodes: `EASY/2011`, the weaker form that
    reproduces the published tables of [RR].
    """

    name: str
    backfill: bool
    before_shadow: bool = True

    @property
    def needs_estimates(self) -> bool:
        """EASY needs to know when jobs will end, FCFS does not."""
        return self.backfill

    @property
    def period_s(self) -> float | None:
        """Batch schedulers act on events only."""
        return None

    def can_ever_run(self, tasks: int, mem_req_frac: float, nodes: int) -> bool:
        """Whether there is a node for every task."""
        return tasks <= nodes and mem_req_frac <= CAPACITY_FRAC

    def decide(self, view: ClusterView, event: Event) -> Decision:  # noqa: ARG002 - the queue says it all
        """Start what may start; running jobs stay where they are."""
        offset = offsets(view.tasks)
        task_node: Ints = view.task_node.copy()
        running = view.state == JobState.RUNNING
        free = view.node_available.copy()
        for row in np.flatnonzero(running):
            nodes = task_node[offset[row] : offset[row + 1]]
            if view.node_available[nodes].all():
                free[nodes] = False
            else:
                nodes[:] = NOT_PLACED
                running[row] = False

        def start(row: int) -> None:
            nodes = np.flatnonzero(free)[: view.tasks[row]]
            task_node[offset[row] : offset[row + 1]] = nodes
            free[nodes] = False
            running[row] = True

        queue = [int(row) for row in np.flatnonzero(~running)]
        while queue and view.tasks[queue[0]] <= np.count_nonzero(free):
            start(queue.pop(0))
        if queue and self.backfill:
            self._backfill(view, queue, running, free, start)
        return Decision(
            task_node=keep_places(offset, view.task_node, task_node, free.size),
            yield_frac=running.astype(np.float64),
        )

    def _backfill(
        self,
        view: ClusterView,
        queue: list[int],
        running: NDArray[np.bool_],
        free: NDArray[np.bool_],
        start: Callable[[int], None],
    ) -> None:
        begun_s = np.where(np.isnan(view.start_time_s), view.time_s, view.start_time_s)
        ends_s = np.maximum(begun_s + view.estimate_s, view.time_s)
        shadow_s, extra = reservation(
            int(view.tasks[queue[0]]), int(np.count_nonzero(free)), ends_s[running], view.tasks[running]
        )
        for row in queue[1:]:
            tasks = int(view.tasks[row])
            if tasks > np.count_nonzero(free):
                continue
            if self.before_shadow and view.time_s + view.estimate_s[row] <= shadow_s:
                start(row)
            elif tasks <= extra:
                extra -= tasks
                start(row)


def reservation(tasks: int, free: int, ends_s: Floats, sizes: Ints) -> tuple[float, int]:
    """Return the shadow time of a head of `tasks` nodes and the extra nodes that are free beside it then.

    `free` nodes are free now; running jobs of `sizes` nodes end at `ends_s`, and all that end at exactly the
    shadow time count. If the head does not fit even when all have ended (nodes are missing), there is no
    reservation to protect: infinite time.
    """
    for end_s in np.unique(ends_s):
        at_end = free + int(sizes[ends_s <= end_s].sum())
        if at_end >= tasks:
            return float(end_s), at_end - tasks
    return np.inf, 0
