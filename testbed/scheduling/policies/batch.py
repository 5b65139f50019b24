"""Batch baselines: whole nodes, one job per node, yield 1 [RR 5.2].

FCFS starts jobs in order of submission. EASY gives the head of the queue a reservation at the shadow time,
the first instant at which enough nodes will be free, and lets later jobs go ahead that do not delay it: those
that end by the shadow time, and those that fit beside the head (into the extra nodes). Completions are in the
view already, so one pass over the queue serves completions and submissions of one instant alike.

A running job is expected to end at its first start plus its estimate. If that has passed (the estimate was
short, or the job lost its nodes and was started again), it is expected to end now. A job whose nodes became
unavailable goes back to its place in the queue.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from testbed.scheduling.policies.backfill import BatchJobs, QueueRules, start_jobs, take_lowest
from testbed.scheduling.policies.capacity import CAPACITY_FRAC, offsets
from testbed.scheduling.policies.moves import keep_places
from testbed.scheduling.policies.view import NOT_PLACED, ClusterView, Decision, Event, Ints, JobState


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """FCFS, or EASY in one of two forms.

    `backfill` lets jobs go ahead of the head. `before_shadow` lets them also if they end by the shadow time:
    canonical EASY. Without it a job goes ahead only into the extra nodes: `EASY/2011`, a guess at the
    form behind the published tables of [RR] that does not fit all of them.
    """

    name: str
    backfill: bool
    before_shadow: bool = True

    @property
    def queue_rules(self) -> QueueRules:
        """The rules of the policy; its decisions depend on these and the cluster only."""
        return QueueRules(self.backfill, self.before_shadow)

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

        jobs = _jobs(view)
        ending: Ints = np.zeros(free.size, dtype=np.int64)
        rows = np.flatnonzero(running)
        ending[: rows.size] = rows[np.argsort(-jobs.expected_end_s[rows], kind="stable")]
        queue = np.flatnonzero(~running)
        started = start_jobs(
            self.backfill, self.before_shadow, view.time_s, int(np.count_nonzero(free)), queue, ending, rows.size, jobs
        )
        lowest = 0
        for row in queue[:started]:
            lowest = take_lowest(free, task_node[offset[row] : offset[row + 1]], lowest)
            running[row] = True
        return Decision(
            task_node=keep_places(offset, view.task_node, task_node, free.size),
            yield_frac=running.astype(np.float64),
        )


def _jobs(view: ClusterView) -> BatchJobs:
    # A job that runs and has no start time yet is about to get the present one.
    missing = (view.state == JobState.RUNNING) & np.isnan(view.start_time_s)
    start_time_s = np.where(missing, view.time_s, view.start_time_s)
    return BatchJobs(view.tasks, view.estimate_s, start_time_s, start_time_s + view.estimate_s)
