"""The result of a simulation of one trace under one policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from testbed.scheduling.metrics import TAU_S, bounded_stretch
from testbed.scheduling.policies.view import Floats, Ints
from testbed.scheduling.simulation.needs_figures import NeedsFigures
from testbed.scheduling.workload.jobs import Job

# Kinds of entries in the log of a simulation. `Moves` has the first two.
PREEMPTION, MIGRATION, START, RESUME, SHARE, DECISION = range(6)


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """Every preemption and migration of a run, M of them, in order of time; a job counts once per instant.

    A preemption is logged when the job is paused, whether it resumes or not, and concerns all of its tasks; a migration
    concerns the tasks that changed their node.
    """

    time_s: Floats  # (M,) trace seconds
    row: Ints  # (M,) index into the jobs of the run
    kind: Ints  # (M,) PREEMPTION or MIGRATION
    tasks: Ints  # (M,)

    @classmethod
    def none(cls) -> Moves:
        """Return the log of a run without moves."""
        empty = np.empty(0, dtype=np.int64)
        return cls(time_s=np.empty(0), row=empty, kind=empty, tasks=empty)


@dataclass(frozen=True, slots=True)
class Placement:
    """The outcome of a decision for a job: its tasks on `nodes` (empty if it does not run), from `time_s` on.

    The job makes no progress before `free_at_s`, when its last penalty ends; -infinite if it never had one. Progress
    after it is at `yield_frac`, or at the rate of an overhead model for that yield. Times are trace seconds; `row` is
    the job's place in the trace. Tasks keep their nodes as far as they can, also while the job is paused.
    """

    time_s: float
    row: int
    nodes: tuple[int, ...]
    yield_frac: float
    free_at_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """All changes by the decisions of a run: E entries, in order of time, and of rows at one instant.

    A decision begins with an entry of the kind DECISION, even if it changes nothing.
    """

    time_s: Floats  # (E,) trace seconds
    row: Ints  # (E,)
    kind: Ints  # (E,)
    yield_frac: Floats  # (E,)
    free_at_s: Floats  # (E,)
    nodes: Ints  # of the tasks of each START, RESUME and MIGRATION, one after the other

    def decisions(self, tasks: Sequence[int]) -> Iterator[tuple[float, list[Placement]]]:
        """Yield the instant of each decision, and the placements of the jobs that it changed.

        `tasks` are the numbers of tasks of the jobs of the run.
        """
        numbers = (self.row, self.kind, self.yield_frac, self.free_at_s)
        places: dict[int, tuple[int, ...]] = {}
        taken = 0
        for entries in np.split(np.arange(self.kind.size), np.flatnonzero(self.kind == DECISION))[1:]:
            time_s = float(self.time_s[entries[0]])
            changed: list[Placement] = []
            for row, kind, yield_frac, free_at_s in zip(*(each[entries[1:]].tolist() for each in numbers), strict=True):
                if kind in (START, RESUME, MIGRATION):
                    places[row] = tuple(self.nodes[taken : taken + tasks[row]].tolist())
                    taken += tasks[row]
                nodes = () if kind == PREEMPTION else places[row]
                changed.append(Placement(time_s, row, nodes, yield_frac, free_at_s))
            yield time_s, changed


@dataclass(frozen=True, slots=True)
class ShareTransfer:
    """Shares of one job that a task, or the job's bank, has taken from another at `time_s` trace seconds.

    `giver` and `receiver` are numbers of tasks as text, or `testbed.shares.node.BANK`; `row` is the job's place in the
    trace. `cores` are fractions of a node, as all shares of a simulation.
    """

    time_s: float
    row: int
    giver: str
    receiver: str
    cores: float


@dataclass(frozen=True, eq=False)
class SimulatedRun:
    """A completed simulation: J jobs in order of submission, times in trace seconds.

    `decide_total_s` and `decide_max_s` are wall seconds that the policy took for all its decisions and for the
    slowest one: 0 if no decision was timed.
    """

    policy: str
    nodes: int
    jobs: tuple[Job, ...]
    start_s: Floats  # (J,) first start
    end_s: Floats  # (J,)
    virtual_time_s: Floats  # (J,) at the end: the run time
    preemptions: Ints  # (J,) how often the job was paused
    migrations: Ints  # (J,) how often the nodes of the running job changed
    penalty_s: Floats  # (J,) time on nodes without progress, after starts, resumes and migrations
    tasks_moved: Ints  # (J,) tasks paused, and tasks that migrated, over all such events
    moves: Moves
    decisions: int
    decide_total_s: float
    decide_max_s: float
    recording: Recording | None = None  # if requested
    share_transfers: tuple[ShareTransfer, ...] = ()  # if requested, under shares; in order of time
    needs: NeedsFigures | None = None  # if needs were not as declared, or were estimated

    @classmethod
    def undisturbed(
        cls, policy: str, nodes: int, jobs: tuple[Job, ...], start_s: Floats, end_s: Floats, *,
        decisions: int, decide_total_s: float, decide_max_s: float, penalty_s: Floats | None = None,
        recording: Recording | None = None,
    ) -> SimulatedRun:  # fmt: skip
        """Return a run in which no job was ever paused or moved; `penalty_s` (J,) is the cost of first starts."""
        nothing: NDArray[np.int64] = np.zeros(len(jobs), dtype=np.int64)
        if penalty_s is None:
            penalty_s = np.zeros(len(jobs))
        return cls(
            policy=policy, nodes=nodes, jobs=jobs, start_s=start_s, end_s=end_s,
            virtual_time_s=np.array([job.run_time_s for job in jobs], dtype=np.float64),
            preemptions=nothing, migrations=nothing, penalty_s=penalty_s, tasks_moved=nothing,
            moves=Moves.none(), decisions=decisions, decide_total_s=decide_total_s, decide_max_s=decide_max_s,
            recording=recording,
        )  # fmt: skip

    def decided(self) -> Iterator[tuple[float, list[Placement]]]:
        """Yield the instant of each decision and its changes: see `Recording.decisions`.

        Raises ValueError for a run that was not recorded.
        """
        if self.recording is None:
            raise ValueError("the run was not recorded")
        return self.recording.decisions([job.tasks for job in self.jobs])

    @cached_property
    def submit_s(self) -> Floats:
        """Submission times (J,)."""
        return np.array([job.submit_time_s for job in self.jobs], dtype=np.float64)

    @cached_property
    def run_time_s(self) -> Floats:
        """Processing times on a dedicated cluster (J,)."""
        return np.array([job.run_time_s for job in self.jobs], dtype=np.float64)

    @property
    def makespan_s(self) -> float:
        """Trace seconds from the first submission to the last completion."""
        return float(self.end_s.max() - self.submit_s[0])

    def stretches(self, tau_s: float = TAU_S) -> Floats:
        """Return the bounded stretch of each job (J,)."""
        return bounded_stretch(self.end_s - self.submit_s, self.run_time_s, tau_s)

    def job_rows(self, node_memory_gb: float, tau_s: float = TAU_S) -> Iterator[tuple[object, ...]]:
        """Yield the rows of jobs.csv, in the order of `testbed.measure.rundir.JOB_COLUMNS`.

        `bytes_moved` is the memory of the tasks that were paused or migrated, once written and once read, on nodes
        of `node_memory_gb` (1e9 bytes). No migration is live: [RR 5.1] pauses and resumes.
        """
        stretches = self.stretches(tau_s)
        for row, job in enumerate(self.jobs):
            moved_gb = 2.0 * float(self.tasks_moved[row]) * job.mem_req_frac * node_memory_gb
            yield (
                job.job_id, job.submit_time_s, job.tasks, job.cpu_need_frac, job.mem_req_frac, job.run_time_s,
                float(self.start_s[row]), float(self.end_s[row]), float(stretches[row]),
                float(self.virtual_time_s[row]), int(self.preemptions[row]), int(self.migrations[row]),
                float(self.penalty_s[row]), round(moved_gb * 1e9), 0,
            )  # fmt: skip
