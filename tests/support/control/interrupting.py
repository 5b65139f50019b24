"""A policy for tests: it interrupts every job once, after its first progress, and resumes it with its nodes swapped.

A job starts at a yield that makes its finite work take very long, and gets its full yield only when it is resumed: the
job is still at work when it is interrupted, on a machine of any speed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from testbed.scheduling.policies.view import NOT_PLACED, ClusterView, Decision, Event, JobState

THROTTLED_YIELD = 0.01  # the kernel's quota can be no smaller
FULL_YIELD = 0.25  # four tasks of need 1 fit on a node


@dataclass(frozen=True)
class Interrupting:
    """A policy without state: the places of a job's tasks show whether it was interrupted."""

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
            at_home = (task_node[own] == home).all()
            if view.state[row] == JobState.WAITING:
                task_node[own], yield_frac[row] = home, THROTTLED_YIELD
            elif view.state[row] == JobState.PAUSED:
                task_node[own], yield_frac[row] = away, FULL_YIELD
            elif at_home and view.virtual_time_s[row] > 0:
                task_node[own] = NOT_PLACED
            else:
                yield_frac[row] = THROTTLED_YIELD if at_home else FULL_YIELD
        return Decision(task_node, yield_frac)


def interrupting(name: str, period_s: float) -> Interrupting:
    """Make the policy, as an entry point of `testbed.policies`."""
    return Interrupting(name, period_s)
