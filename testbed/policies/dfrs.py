"""Dynamic fractional resource scheduling as a policy: the shared kernel on the arrays of a view [RR 4].

Decisions are made by the plain kernel, at once, until somebody who has the time calls `use_compiled`; both forms
come to the same bits, so nobody can tell from a decision which of them made it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from testbed.compiler import can_compile, compiled, is_cached
from testbed.policies.capacity import offsets, tasks_per_node
from testbed.policies.decision import decide
from testbed.policies.ipdps import next_retry_s
from testbed.policies.moves import keep_places
from testbed.policies.state import NO_PASS, Cluster, Jobs, Rules
from testbed.policies.view import ClusterView, Decision, Event, Ints, JobState

Decide = Callable[[Rules, Jobs, Cluster, float, Ints, Ints, bool, bool], None]


@dataclass(slots=True)
class _Engine:
    """Which form of the kernel decides in this process."""

    decide: Decide = decide


_engine = _Engine()


def use_compiled() -> None:
    """Compile the kernel, or load it, and let it decide from now on in this process.

    It takes a minute when nothing is cached: call it from a thread where decisions must go on. Raises ImportError
    without numba.
    """
    kernel = compiled(decide)
    nobody = np.zeros(0, dtype=np.int64)
    jobs = Jobs(np.zeros(0), np.zeros(1, dtype=np.int64), np.zeros(0), np.zeros(0))
    cluster = Cluster(np.ones(1, dtype=np.bool_), np.zeros(0), np.zeros(0, dtype=np.bool_), nobody.copy(), np.zeros(0))
    idle = Rules(0, 0, 0, 0, 0, 0.0, 0.0, 0.0, clamps_yields=False, backs_off=False)
    kernel(idle, jobs, cluster, 0.0, nobody, nobody, False, False)
    _engine.decide = kernel


def can_load() -> bool:
    """Whether the machine code of the kernel is at hand, so that `use_compiled` has nothing to compile."""
    return can_compile() and is_cached(decide)


@dataclass(frozen=True, slots=True)
class DfrsPolicy:
    """An algorithm of [RR] Table 1 or of [IPDPS III]: its catalogue name, and its rules."""

    name: str
    rules: Rules

    @property
    def needs_estimates(self) -> bool:
        """DFRS knows nothing of run times."""
        return False

    @property
    def period_s(self) -> float | None:
        """Seconds of trace time between packings of all jobs, None without them."""
        return None if self.rules.periodic == NO_PASS else self.rules.period_s

    def can_ever_run(self, tasks: int, mem_req_frac: float, nodes: int) -> bool:
        """Whether the memory of `nodes` empty nodes holds `tasks` tasks; CPU never stands in the way."""
        return tasks <= nodes * tasks_per_node(mem_req_frac)

    def next_wake_s(self, view: ClusterView) -> float | None:
        """Return the next instant at which a waiting job is to be tried again, None if there is none."""
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
        """Answer an event; raise ValueError where it names a submitted job that is not in the view."""
        # Copies: arrays that refuse writing would be other types to the compiled kernel, and have it compiled again.
        jobs = Jobs(
            submit_time_s=view.submit_time_s.copy(),
            offset=offsets(view.tasks),
            cpu_need_frac=view.cpu_need_frac.copy(),
            mem_req_frac=view.mem_req_frac.copy(),
        )
        cluster = Cluster(
            node_available=view.node_available.copy(),
            virtual_time_s=view.virtual_time_s.copy(),
            running=view.state == JobState.RUNNING,
            task_node=view.task_node.copy(),
            yield_frac=np.zeros(view.tasks.size),
        )
        _engine.decide(
            self.rules,
            jobs,
            cluster,
            float(view.time_s),
            np.arange(view.tasks.size),
            np.array([_row(view, job_id) for job_id in event.submitted], dtype=np.int64),
            bool(event.completed or event.changed),
            event.periodic,
        )
        return Decision(
            task_node=keep_places(jobs.offset, view.task_node, cluster.task_node, view.node_available.size),
            yield_frac=cluster.yield_frac,
        )


def _row(view: ClusterView, job_id: int) -> int:
    rows = np.flatnonzero(view.job_id == job_id)
    if rows.size != 1:
        raise ValueError(f"submitted job {job_id}: {rows.size} rows in the view, expected 1")
    return int(rows[0])
