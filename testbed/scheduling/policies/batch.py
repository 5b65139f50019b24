"""Batch baselines: whole nodes, one job per node, yield 1 [RR 5.2].

FCFS starts jobs in order of submission. EASY gives the head of the queue a reservation at the shadow time,
the first instant at which enough nodes will be free. Later jobs overtake the head if they do not delay it: jobs
that end by the shadow time, and jobs that fit on the extra nodes beside the head. Completions are in the
view already, so one pass over the queue handles completions and submissions of one instant alike.

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

    With `backfill` jobs may overtake the head of the queue on the extra nodes. With `before_shadow` they may also do so
    if they end by the shadow time: this is canonical EASY. Without it the policy is `EASY/2011`, a guess at the variant
    behind the published tables of [RR], which does not agree with all of them.
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
        """Whether the policy needs estimated run times: EASY does, FCFS does not."""
        return self.backfill

    @property
    def period_s(self) -> float | None:
        """None, as batch schedulers act on events only."""
        return None

    def can_ever_run(self, tasks: int, mem_req_frac: float, nodes: int) -> bool:
        """Whether there is a node for every task."""
        return tasks <= nodes and mem_req_frac <= CAPACITY_FRAC

    def decide(self, view: ClusterView, event: Event) -> Decision:  # noqa: ARG002 - the queue is in the view
        """Start the jobs that may start; running jobs keep their nodes."""
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
    # A running job without a start time is being started now.
    missing = (view.state == JobState.RUNNING) & np.isnan(view.start_time_s)
    start_time_s = np.where(missing, view.time_s, view.start_time_s)
    return BatchJobs(view.tasks, view.estimate_s, start_time_s, start_time_s + view.estimate_s)
