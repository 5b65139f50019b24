"""A policy for tests: every third job migrates live to the other node once, all others are saved and restored there.

Each job moves once, after its first progress. A job starts at a yield at which its finite work takes long, so that it
is still running when it moves, and gets its full yield afterwards. The places of its tasks show whether it has moved,
so the policy keeps no state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from testbed.scheduling.policies.view import NOT_PLACED, ClusterView, Decision, Event, JobState

LIVE_EVERY = 3
THROTTLED_YIELD = 0.25
FULL_YIELD = 1.0  # the needs are so small that all jobs of the test can run at the same time


@dataclass(frozen=True)
class Moving:
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
            at_home, works = (task_node[own] == home).all(), view.virtual_time_s[row] > 0
            if view.state[row] == JobState.WAITING:
                task_node[own], yield_frac[row] = home, THROTTLED_YIELD
            elif view.state[row] == JobState.PAUSED:
                task_node[own], yield_frac[row] = away, FULL_YIELD
            elif not (at_home and works):
                yield_frac[row] = THROTTLED_YIELD if at_home else FULL_YIELD
            elif view.job_id[row] % LIVE_EVERY == 0:
                task_node[own], yield_frac[row] = away, FULL_YIELD
            else:
                task_node[own] = NOT_PLACED
        return Decision(task_node, yield_frac)


def moving(name: str, period_s: float) -> Moving:
    """Make the policy, as an entry point of `testbed.policies`."""
    return Moving(name, period_s)
