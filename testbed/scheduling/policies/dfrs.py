"""Dynamic fractional resource scheduling as a policy: the shared kernel on the arrays of a view [RR 4].

`testbed.scheduling.policies.loading` replaces the plain kernel with its compiled form, which produces the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from testbed.scheduling.policies.capacity import tasks_per_node
from testbed.scheduling.policies.decision import decide
from testbed.scheduling.policies.fairness import MOST_GUARANTEED_FRAC
from testbed.scheduling.policies.ipdps import next_retry_s, next_wake_s
from testbed.scheduling.policies.kernel_policy import Kernels, decide_view
from testbed.scheduling.policies.state import NO_PASS, Rules
from testbed.scheduling.policies.view import ClusterView, Decision, Event, JobState

DFRS = Kernels(decide, next_wake_s)


@dataclass(frozen=True, slots=True)
class DfrsPolicy:
    """An algorithm of [RR] Table 1 or of [IPDPS III]: its catalogue name, and its rules."""

    name: str
    rules: Rules

    @property
    def kernels(self) -> Kernels:
        """The kernels that all algorithms share."""
        return DFRS

    @property
    def needs_estimates(self) -> bool:
        """False, as DFRS does not use run times."""
        return False

    @property
    def period_s(self) -> float | None:
        """Seconds of trace time between packings of all jobs, None without them."""
        return None if self.rules.periodic == NO_PASS else self.rules.period_s

    def can_ever_run(self, tasks: int, mem_req_frac: float, nodes: int) -> bool:
        """Whether the memory of `nodes` empty nodes holds `tasks` tasks; CPU never prevents that."""
        return tasks <= nodes * tasks_per_node(mem_req_frac)

    @property
    def knows_guarantees(self) -> bool:
        """See `GuaranteeingPolicy`."""
        return self.rules.guarantees

    def can_ever_guarantee(self, tasks: int, cpu_frac: float, nodes: int) -> bool:
        """See `GuaranteeingPolicy`: with all of an empty cluster; True if the rules have no guarantees."""
        each = int(MOST_GUARANTEED_FRAC / cpu_frac) if self.rules.guarantees and cpu_frac > 0.0 else tasks
        return tasks <= nodes * each

    def next_wake_s(self, view: ClusterView) -> float | None:
        """Return the next instant at which to try a waiting job again, None if there is none."""
        if not self.rules.backs_off:
            return None
        waiting = view.submit_time_s[view.state != JobState.RUNNING]
        return min((next_retry_s(float(submit_time_s), view.time_s) for submit_time_s in waiting), default=None)

    def retried(self, view: ClusterView, since_s: float) -> tuple[int, ...]:
        """Return the ids of waiting jobs to be tried again after `since_s`, and by the time of the view."""
        if not self.rules.backs_off:
            return ()
        waiting = np.flatnonzero((view.state != JobState.RUNNING) & (view.submit_time_s <= since_s))
        return tuple(
            int(view.job_id[row])
            for row in waiting
            if next_retry_s(float(view.submit_time_s[row]), since_s) <= view.time_s
        )

    def decide(self, view: ClusterView, event: Event) -> Decision:
        """Return the decision on an event; raises ValueError if it names a submitted job that is not in the view."""
        return decide_view(DFRS, self.rules, view, event)
