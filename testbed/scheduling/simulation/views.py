"""Adapter of any policy to the event loop: it passes a view at each event, and writes the decision to the arrays.

Plug-in policies are simulated in this way. Policies of the catalogue can be, too, with the same results as by kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from testbed.errors import RunError
from testbed.scheduling.compiler import bound
from testbed.scheduling.policies.state import Cluster, Jobs, Mask
from testbed.scheduling.policies.view import (
    NOT_PLACED,
    ClusterView,
    Decision,
    Floats,
    Ints,
    JobState,
    Policy,
    WakingPolicy,
    event_at,
    knows_costs,
    unless,
)
from testbed.scheduling.simulation.engine import run_events
from testbed.scheduling.simulation.moving import move_costs_s
from testbed.scheduling.simulation.overheads import OverheadTable
from testbed.scheduling.simulation.soundness import MAP_INCOMPLETE, MEANING
from testbed.scheduling.simulation.world import World
from testbed.scheduling.workload.jobs import Job


class Views:
    """A policy in place of kernels; `table`, `cluster` and `world` are those of the loop, `jobs` its trace."""

    def __init__(
        self, policy: Policy, jobs: Sequence[Job], table: Jobs, cluster: Cluster, world: World,
        overheads: OverheadTable,
    ) -> None:  # fmt: skip
        self._policy = policy
        self._table, self._cluster, self._world = table, cluster, world
        self._job_id: Ints = np.array([job.job_id for job in jobs], dtype=np.int64)
        self._tasks: Ints = np.array([job.tasks for job in jobs], dtype=np.int64)
        self._estimate_s: Floats = np.full(len(jobs), np.nan)
        if policy.needs_estimates:
            self._estimate_s = np.array([job.batch_estimate_s for job in jobs], dtype=np.float64)
        self._move_cost_s = move_costs_s(jobs, overheads) if knows_costs(policy) else None
        self._urgent = np.array([job.urgent for job in jobs], dtype=np.bool_)
        self._known: Ints = np.zeros(0, dtype=np.int64)  # rows of the view of the last decision
        self._asked_s = jobs[0].submit_time_s if jobs else 0.0
        self._spent_ns = 0

    def loop(self) -> Callable[..., int]:
        """Return `run_events` with this policy."""
        return bound(run_events, decide=self.decide, next_wake_s=self.next_wake_s, clock_ns=self.clock_ns)

    def clock_ns(self, scratch: Ints) -> int:
        """Return a time that passes only while the policy decides: the time to make views does not count."""
        del scratch
        return self._spent_ns

    def next_wake_s(self, rules: object, submit_time_s: Floats, running: Mask, time_s: float, active: Ints) -> float:
        """Return the next instant at which the policy asks for a decision, or infinity."""
        del rules, submit_time_s, running
        if active.size == 0 or not isinstance(self._policy, WakingPolicy):
            return np.inf
        wake_s = self._policy.next_wake_s(self._view(self._table, self._cluster, time_s, active))
        return np.inf if wake_s is None else wake_s

    def decide(
        self,
        rules: object,
        jobs: Jobs,
        cluster: Cluster,
        time_s: float,
        active: Ints,
        submitted: Ints,
        freed: bool,
        periodic: bool,
    ) -> None:
        """Let the policy decide, and write the decision to `cluster`; raises RunError for one of the wrong form."""
        del rules, freed
        view = self._view(jobs, cluster, time_s, active)
        event = event_at(
            self._policy, view, self._asked_s,
            completed=self._job_id[self._known[self._world.end_s[self._known] == time_s]].tolist(),
            submitted=self._job_id[submitted].tolist(), periodic=bool(periodic),
        )  # fmt: skip
        self._known, self._asked_s = active.copy(), time_s
        began_ns = time.perf_counter_ns()
        decision = self._policy.decide(view, event)
        self._spent_ns += time.perf_counter_ns() - began_ns
        self._check(decision, view)
        cluster.task_node[self._elements(jobs, active)] = decision.task_node
        cluster.yield_frac[active] = decision.yield_frac
        cluster.running[active] = decision.task_node[np.cumsum(view.tasks) - 1] != NOT_PLACED

    def _elements(self, jobs: Jobs, active: Ints) -> Ints:
        """Return the indices in `Cluster.task_node` of the tasks of active jobs."""
        tasks = self._tasks[active]
        before = np.cumsum(tasks) - tasks
        elements: Ints = np.repeat(jobs.offset[active] - before, tasks) + np.arange(tasks.sum())
        return elements

    def _view(self, jobs: Jobs, cluster: Cluster, time_s: float, active: Ints) -> ClusterView:
        start_s, elements = self._world.start_s[active], self._elements(jobs, active)
        image_node: Ints | None = None
        if self._move_cost_s is not None:
            runs = np.repeat(cluster.running[active], self._tasks[active])
            image_node = np.where(runs, NOT_PLACED, self._world.stood_on[elements])
        idle = np.where(np.isnan(start_s), JobState.WAITING, JobState.PAUSED)
        return ClusterView(
            time_s=float(time_s),
            node_available=cluster.node_available.copy(),
            job_id=self._job_id[active],
            submit_time_s=jobs.submit_time_s[active],
            tasks=self._tasks[active],
            cpu_need_frac=jobs.cpu_need_frac[active],
            mem_req_frac=jobs.mem_req_frac[active],
            virtual_time_s=cluster.virtual_time_s[active],
            state=np.where(cluster.running[active], JobState.RUNNING, idle).astype(np.int8),
            task_node=cluster.task_node[elements],
            start_time_s=start_s,
            estimate_s=self._estimate_s[active],
            urgent=self._urgent[active],
            weight=unless(jobs.weight[active], 1.0),
            least_yield_frac=unless(jobs.least_yield_frac[active], 0.0),
            move_cost_s=None if self._move_cost_s is None else self._move_cost_s[active],
            image_node=image_node,
        )

    def _check(self, decision: Decision, view: ClusterView) -> None:
        place = f"policy {self._policy.name!r} at {view.time_s:.17g} s"
        found = (decision.task_node.size, decision.yield_frac.size)
        if found != (view.task_node.size, view.tasks.size):
            raise RunError(
                f"{place}: a decision for {found[0]} tasks and {found[1]} jobs: expected one for the "
                f"{view.task_node.size} tasks and {view.tasks.size} jobs of the view"
            )
        runs = decision.task_node[np.cumsum(view.tasks) - 1] != NOT_PLACED
        placed = (decision.task_node >= 0) & (decision.task_node < view.node_available.size)
        wrong = placed != np.repeat(runs, view.tasks)
        if wrong.any():
            job_id = np.repeat(view.job_id, view.tasks)[wrong][0]
            raise RunError(f"{place}: job {job_id} {MEANING[MAP_INCOMPLETE]}")
