"""Static placement as a policy: `static/MCB8` and others, for services that never end.

When a job arrives, and when nodes change, the algorithm places all jobs again; when a job ends, only if another one
waits. Nodes of a new map are renamed so that many tasks keep their nodes. If not all jobs fit, those that run go on,
and of the others, the oldest first, those start that fit beside them: by a new map, or else by the present one. Yields
are max-min fair, and not below the equal yield of [PHD]. The algorithms that solve programs (MILP, RRND, RRNZ) are not
among them: their results within a time limit depend on the machine, so that a recorded decision could not be
reproduced, and the controller would wait for the solver.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from testbed.errors import UserError, nearest, shown
from testbed.scheduling.policies.capacity import tasks_per_node
from testbed.scheduling.policies.kernel_policy import arrays_of, as_decision
from testbed.scheduling.policies.placing import drop_lost, least_loaded, usage
from testbed.scheduling.policies.priced_kernel import Before, PricedRules, rename_nodes
from testbed.scheduling.policies.state import Cluster, Jobs, Rules
from testbed.scheduling.policies.view import NOT_PLACED, ClusterView, Decision, Event, Ints
from testbed.scheduling.policies.yields import max_min_yields
from testbed.scheduling.static.algorithms import ALGORITHMS, Settings, place
from testbed.scheduling.static.problem import StaticProblem

FAMILY = "static"
_SETTINGS = Settings(attempts=5_000, compiles=False)  # the controller waits for the decision
NAMES = tuple(name for name in ALGORITHMS if name not in {"MILP", "RRND", "RRNZ"})
_RULES = PricedRules(Rules(0, 0, 0, 0, 0, 0.0, 0.0, 0.0, clamps_yields=False, backs_off=False), 0, 1.0)


@dataclass(frozen=True, slots=True)
class StaticPolicy:
    """Places all jobs by an algorithm of `testbed.scheduling.static` whenever one arrives."""

    algorithm: str

    @property
    def name(self) -> str:
        """`static/`, and the name of the algorithm."""
        return f"{FAMILY}/{self.algorithm}"

    @property
    def needs_estimates(self) -> bool:
        """False, as services do not end."""
        return False

    @property
    def period_s(self) -> float | None:
        """None, as the policy acts on events only."""
        return None

    def can_ever_run(self, tasks: int, mem_req_frac: float, nodes: int) -> bool:
        """Whether the memory of `nodes` empty nodes holds `tasks` tasks; CPU never prevents that."""
        return tasks <= nodes * tasks_per_node(mem_req_frac)

    def decide(self, view: ClusterView, event: Event) -> Decision:
        """Return the decision on an event."""
        jobs, cluster = arrays_of(view)
        active = np.arange(view.tasks.size)
        ran, stood_on = cluster.running.copy(), cluster.task_node.copy()
        drop_lost(jobs, cluster, active)
        if event.submitted or event.changed or not cluster.running.all():
            self._place(active, jobs, cluster)
            zeros, none = np.zeros(active.size), np.zeros(active.size, dtype=np.bool_)
            no_images = np.full(stood_on.size, NOT_PLACED, dtype=np.int64)
            before = Before(ran, stood_on, no_images, zeros, none, ran, np.ones(active.size))
            rename_nodes(_RULES, before, jobs, cluster, view.time_s, active)
        max_min_yields(active, jobs, cluster)
        return as_decision(view, jobs, cluster)

    def _place(self, active: Ints, jobs: Jobs, cluster: Cluster) -> None:
        """Place all jobs; if they do not fit, those that run, and each of the others that fits beside them."""
        if self._placed(active, jobs, cluster):
            return
        among = active[cluster.running]
        if among.size:
            self._placed(among, jobs, cluster)  # without a new map they stay where they are
        for row in active[~cluster.running]:
            with_row = np.sort(np.append(among, row))
            if self._placed(with_row, jobs, cluster) or self._added(row, active, jobs, cluster):
                among = with_row

    def _added(self, row: int, active: Ints, jobs: Jobs, cluster: Cluster) -> bool:
        """Place a job on the least loaded nodes with memory for it, where the others stay; return whether it fits."""
        cpu_frac, mem_frac = usage(active, jobs, cluster)
        return bool(least_loaded(row, jobs, cluster, cpu_frac, mem_frac))

    def _placed(self, rows: Ints, jobs: Jobs, cluster: Cluster) -> bool:
        """Place these jobs, in ascending order, and no others; without a placement, return False and change nothing."""
        nodes = np.flatnonzero(cluster.node_available)
        if not (nodes.size and rows.size):
            return False
        tasks = np.diff(jobs.offset)[rows]
        needs, memory = np.repeat(jobs.cpu_need_frac[rows], tasks), np.repeat(jobs.mem_req_frac[rows], tasks)
        found = place(StaticProblem(needs, memory, nodes.size), self.algorithm, _SETTINGS).node
        if found is None:
            return False
        cluster.running[:] = False
        cluster.running[rows] = True
        cluster.task_node[:] = NOT_PLACED
        cluster.task_node[np.repeat(cluster.running, np.diff(jobs.offset))] = nodes[found]
        return True


def named(name: str, period_s: float) -> StaticPolicy:
    """Return the policy of a name, for the entry points of the group `testbed.policies`; there are no periods.

    Raises `UserError` for an unknown algorithm.
    """
    del period_s
    algorithm = "".join(name.split()).partition("/")[2].upper()
    if algorithm not in NAMES:
        raise UserError(
            f"policy {shown(name, 60)}: expected after {FAMILY}/ one of {', '.join(NAMES)}{nearest(algorithm, NAMES)}"
        )
    return StaticPolicy(algorithm)
