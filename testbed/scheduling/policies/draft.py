"""A draft of a decision, for policies in plain Python: the jobs of a view, and methods to place and pause them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from testbed.scheduling.policies import placing
from testbed.scheduling.policies.kernel_policy import arrays_of, as_decision
from testbed.scheduling.policies.view import ClusterView, Decision, Floats, Ints, JobState
from testbed.scheduling.policies.yields import max_min_yields


@dataclass(frozen=True, slots=True)
class DraftJob:
    """A job in row `row` of the view, in order of submission: see `ClusterView` for its figures."""

    row: int
    job_id: int
    submit_time_s: float
    tasks: int
    cpu_need_frac: float
    mem_req_frac: float
    virtual_time_s: float
    start_time_s: float
    estimate_s: float
    state: JobState


class Draft:
    """A draft of a decision: at first every job keeps its nodes, except jobs on unavailable nodes, which wait.

    `least_loaded`, `first_fit` and `place` place all tasks of a job or none, and return whether they did. The view is
    not changed. Jobs must be of this draft. Raises ValueError when a job is placed that does not wait, or when a job is
    paused that does not run.
    """

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._jobs, self._cluster = arrays_of(view)
        self._active = np.arange(view.tasks.size)
        columns = (
            view.job_id, view.submit_time_s, view.tasks, view.cpu_need_frac, view.mem_req_frac, view.virtual_time_s,
            view.start_time_s, view.estimate_s,
        )  # fmt: skip
        rows = zip(*(column.tolist() for column in columns), map(JobState, view.state.tolist()), strict=True)
        self.jobs = [DraftJob(row, *figures) for row, figures in enumerate(rows)]
        placing.drop_lost(self._jobs, self._cluster, self._active)
        self._cpu_frac, self._mem_frac = placing.usage(self._active, self._jobs, self._cluster)

    @property
    def running(self) -> list[DraftJob]:
        """The jobs that have nodes now, in order of submission."""
        return [job for job in self.jobs if self._cluster.running[job.row]]

    @property
    def waiting(self) -> list[DraftJob]:
        """The jobs that have no nodes now, paused ones too, in order of submission."""
        return [job for job in self.jobs if not self._cluster.running[job.row]]

    def nodes_of(self, job: DraftJob) -> list[int]:
        """Return the node of each task, none for a job that waits."""
        nodes = self._cluster.task_node[self._jobs.offset[job.row] : self._jobs.offset[job.row + 1]]
        return nodes.tolist() if self._cluster.running[job.row] else []

    @property
    def memory_left_frac(self) -> Floats:
        """The memory that nodes have left (N,), 0 on a node that is not available."""
        return placing.memory_left(self._mem_frac)

    @property
    def nodes_by_load(self) -> Ints:
        """The available nodes, the one with the least CPU need of its tasks first."""
        return placing.nodes_by_load(self._cpu_frac, self._mem_frac)

    @property
    def idle_nodes(self) -> Ints:
        """The available nodes without any task, by number."""
        used = self._cluster.task_node[self._cluster.task_node >= 0]
        return np.setdiff1d(np.flatnonzero(self._view.node_available), used)

    def least_loaded(self, job: DraftJob) -> bool:
        """Place each task on the node with the least CPU need that has memory for it."""
        return placing.least_loaded(self._waits(job), self._jobs, self._cluster, self._cpu_frac, self._mem_frac)

    def first_fit(self, job: DraftJob) -> bool:
        """Place each task on the first node that has memory for it."""
        return placing.first_fit(self._waits(job), self._jobs, self._cluster, self._cpu_frac, self._mem_frac)

    def place(self, job: DraftJob, nodes: Ints) -> bool:
        """Place one task on each of `nodes`, or none if there are too few or too many nodes, or too little memory."""
        row = self._waits(job)
        return placing.place_on(row, np.asarray(nodes), self._jobs, self._cluster, self._cpu_frac, self._mem_frac)

    def pause(self, job: DraftJob) -> None:
        """Pause a running job, which leaves its nodes."""
        if not self._cluster.running[job.row]:
            raise ValueError(f"job {job.job_id} does not run: it cannot be paused")
        placing.release(job.row, self._jobs, self._cluster, self._cpu_frac, self._mem_frac)

    def decision(self) -> Decision:
        """Return the decision: jobs share the CPU of their nodes by max-min fair yields [RR 4.6]."""
        max_min_yields(self._active, self._jobs, self._cluster)
        return as_decision(self._view, self._jobs, self._cluster)

    def _waits(self, job: DraftJob) -> int:
        if self._cluster.running[job.row]:
            raise ValueError(f"job {job.job_id} runs already: pause it first")
        return job.row
