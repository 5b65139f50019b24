"""A policy for tests: the id of a job determines the one operation on it, which follows its first progress.

A job starts at a yield at which its finite work takes long, so that it is still running at the operation, and gets its
full yield afterwards. The places of its tasks show whether the operation is done, so the policy keeps no state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from testbed.scheduling.policies.view import NOT_PLACED, ClusterView, Decision, Event, JobState

PREEMPTED_PARALLEL, PREEMPTED_SERIAL, MIGRATED, KILLED, UNDISTURBED = 1, 2, 3, 4, 5
"""Job ids, by operation: save and restore on the same nodes; save, and restore on the other node; live migration to the
other node; none, at its slow start, for the test to kill; none."""
THROTTLED_YIELD = 0.25
FULL_YIELD = 1.0  # the needs are so small that all jobs of the test can run at the same time


@dataclass(frozen=True)
class Choreography:
    """See the module."""

    name: str
    period_s: float
    needs_estimates: bool = False

    def can_ever_run(self, tasks: int, mem_req_frac: float, nodes: int) -> bool:
        """See `testbed.scheduling.policies.view.Policy`."""
        return tasks * mem_req_frac <= nodes

    def decide(self, view: ClusterView, event: Event) -> Decision:
        """See `testbed.scheduling.policies.view.Policy`."""
        nodes, task_node = len(view.node_available), view.task_node.copy()
        yield_frac = np.zeros(len(view.job_id))
        ends = np.cumsum(view.tasks)
        for row, (tasks, end) in enumerate(zip(view.tasks, ends, strict=True)):
            own = slice(end - tasks, end)
            home = np.arange(tasks) % nodes
            away = (home + 1) % nodes
            job, state = view.job_id[row], view.state[row]
            at_home, works = (task_node[own] == home).all(), view.virtual_time_s[row] > 0
            if state == JobState.WAITING:
                task_node[own] = home
                yield_frac[row] = FULL_YIELD if job == UNDISTURBED else THROTTLED_YIELD
            elif state == JobState.PAUSED:
                task_node[own], yield_frac[row] = away, FULL_YIELD
            elif job in (UNDISTURBED, KILLED) or not (at_home and works):
                at_start = job == KILLED or (job != UNDISTURBED and at_home)
                yield_frac[row] = THROTTLED_YIELD if at_start else FULL_YIELD
            elif job == MIGRATED:
                task_node[own], yield_frac[row] = away, FULL_YIELD
            else:
                task_node[own] = NOT_PLACED
        return Decision(task_node, yield_frac)


def choreography(name: str, period_s: float) -> Choreography:
    """Make the policy, as an entry point of `testbed.policies`."""
    return Choreography(name, period_s)
