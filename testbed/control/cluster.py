"""The controller's picture of the live cluster: jobs, where they are, how far they are, what they are meant to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec
import numpy as np

from testbed.bus.messages import GuestSpec, ImageRef
from testbed.control.planner import JobStatus, PlannedAction, Target, Verb, stable_nodes
from testbed.control.reschedulings import Rescheduling
from testbed.failure_codes import Failure
from testbed.measure.metrics import bounded_stretch
from testbed.policies.view import NOT_PLACED, ClusterView, Decision, JobState
from testbed.workload.jobs import Job


class Phase(StrEnum):
    """Where a job is in its life, as far as the controller knows."""

    COMING = "coming"
    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    SAVING = "saving"
    SAVED = "saved"
    TRANSFERRING = "transferring"
    RESTORING = "restoring"
    MIGRATING = "migrating"
    DONE = "done"
    FAILED = "failed"


ENDED = frozenset({Phase.DONE, Phase.FAILED})


@dataclass(slots=True, eq=False)
class LiveJob:
    """One job of the run. Times named `*_trace_s` are trace seconds, the others wall seconds since the run began.

    `running_on` is set from the first command of a start until the last guest is gone: memory is held that long.
    `migrating_to` is where its tasks go live, from the first command until it is certain where each is: memory is held
    at both ends that long. `live_refused` says that a live migration did not succeed: the next one is by images.
    `flight` is the operation under way. `unchecked` are tasks that have ended while their results are still being
    checked by the agents of their nodes, with these. What a job that is not `verified` comes to is not checked.
    `been` are the tasks with the nodes that they were ever ordered to, as (node, task).
    `placed_s` is when its guests were last ordered to be created, `left_s` when its last save was over. `doubts` says
    why what was told of tasks cannot be true, by task. `stranded` says why a job cannot be placed while a node is lost,
    `withdrawn` why its guests are cleared away before it starts again; the policy sees neither.
    """

    job: Job
    specs: tuple[GuestSpec, ...]
    trace_s_per_unit: float
    phase: Phase = Phase.COMING
    running_on: tuple[int, ...] | None = None
    migrating_to: tuple[int, ...] | None = None
    live_refused: bool = False
    saved_on: tuple[int, ...] | None = None
    images: tuple[ImageRef, ...] = ()
    image_holders: set[tuple[int, str]] = field(default_factory=set)
    yield_frac: float = 0.0
    flight: PlannedAction | None = None
    intended: Target | None = None
    was_started: bool = False
    units_done: list[int] = field(default_factory=list)
    progressed: set[int] = field(default_factory=set)
    finished_tasks: set[int] = field(default_factory=set)
    unchecked: dict[int, int] = field(default_factory=dict)
    been: set[tuple[int, int]] = field(default_factory=set)
    placed_s: float = 0.0
    left_s: float = 0.0
    doubts: dict[int, str] = field(default_factory=dict)
    progress_s: float = 0.0
    virtual_time_high_s: float = 0.0
    start_trace_s: float | None = None
    end_trace_s: float | None = None
    failure: Failure | None = None
    verified: bool = True
    checksums: dict[int, str] = field(default_factory=dict)
    stranded: Failure | None = None
    withdrawn: str = ""
    restarts: int = 0
    reschedulings: list[Rescheduling] = field(default_factory=list)
    preemptions: int = 0
    migrations: int = 0

    @property
    def job_id(self) -> int:
        """The id in the trace."""
        return self.job.job_id

    @property
    def guests(self) -> tuple[str, ...]:
        """Names of its guests, by task."""
        return tuple(spec.guest for spec in self.specs)

    @property
    def memory_mib(self) -> int:
        """Memory of one task."""
        return self.specs[0].memory_mib

    @property
    def ended(self) -> bool:
        """Whether it is done or failed."""
        return self.phase in ENDED

    def enter(self, phase: Phase) -> None:
        """Change the phase; a job that has ended stays so, whatever becomes of its operation in the same moment."""
        if not self.ended:
            self.phase = phase

    @property
    def advances(self) -> bool:
        """Whether every task has been seen to progress since it was last started or restored."""
        return self.phase in (Phase.RUNNING, Phase.MIGRATING) and len(self.progressed) == len(self.specs)

    def places(self, task: int) -> frozenset[int]:
        """Nodes at which a task holds memory: none, one, or two while it migrates live."""
        return frozenset(nodes[task] for nodes in (self.running_on, self.migrating_to) if nodes is not None)

    def held_mib(self, node: int) -> int:
        """Memory that the job holds on a node."""
        return self.memory_mib * sum(node in self.places(task) for task in range(len(self.specs)))

    def image_copies(self) -> list[set[int]]:
        """Return the nodes that have, or may have, a copy of each task's last image; empty without images."""
        return [{node for node, name in self.image_holders if name == image.image} for image in self.images]

    def virtual_time_s(self, now_s: float, time_scale: float) -> float:
        """Progress in dedicated trace seconds: what was last reported, carried on at the present yield.

        It is the work really done, so it stands still while the job is paused, moved or held up, and needs no
        knowledge of the run time. It never goes back.
        """
        measured_s = min(self.units_done) * self.trace_s_per_unit
        if self.advances and len(self.finished_tasks) == 0:
            measured_s += self.yield_frac * (now_s - self.progress_s) * time_scale
        self.virtual_time_high_s = max(self.virtual_time_high_s, measured_s)
        return self.virtual_time_high_s

    def measured_virtual_time_s(self) -> float:
        """Progress that was reported, in dedicated trace seconds."""
        return min(self.units_done) * self.trace_s_per_unit

    def stretch(self, tau_s: float) -> float | None:
        """Bounded stretch of a job that ended well, None of any other."""
        if self.phase is not Phase.DONE or self.end_trace_s is None:
            return None
        return float(bounded_stretch(self.end_trace_s - self.job.submit_time_s, self.job.run_time_s, tau_s))

    def begin_again(self, images_on: tuple[int, ...] | None) -> None:
        """Forget what its guests did: they are gone. It starts from the images at `images_on`, or from the beginning.

        Guests that start from the beginning have new names, so that nothing late is taken for theirs.
        """
        self.restarts += 1
        if images_on is None:
            self.images = ()
            self.specs = tuple(
                msgspec.structs.replace(spec, guest=f"{spec.guest.partition('-r')[0]}-r{self.restarts}")
                for spec in self.specs
            )
        self.phase = Phase.WAITING if images_on is None else Phase.SAVED
        self.saved_on, self.running_on, self.migrating_to, self.intended = images_on, None, None, None
        self.units_done, self.virtual_time_high_s, self.yield_frac = [0] * len(self.specs), 0.0, 0.0
        for told in (self.progressed, self.finished_tasks, self.unchecked, self.checksums, self.doubts):
            told.clear()
        self.live_refused, self.withdrawn = False, ""

    def status(self) -> JobStatus:
        """What the job is once its operation in flight is over, for the planner."""
        running, saved, yield_frac = self.running_on, self.saved_on, self.yield_frac
        if self.flight is not None:
            match self.flight.verb:
                case Verb.SAVE:
                    running, saved, yield_frac = None, self.flight.nodes, 0.0
                case Verb.TRANSFER:
                    saved = self.flight.nodes
                case Verb.START | Verb.RESTORE | Verb.CAP | Verb.MIGRATE:
                    running, saved, yield_frac = self.flight.nodes, None, self.flight.yield_frac
        return JobStatus(self.job_id, self.memory_mib, running, yield_frac, saved, live=not self.live_refused)


class Cluster:
    """All jobs of the run by id, in order of submission, and which nodes are there."""

    def __init__(self, jobs: Sequence[LiveJob], nodes: int) -> None:
        self.jobs = {live.job_id: live for live in jobs}
        self.node_available = [True] * nodes  # for the policy: not lost
        self.node_reachable = [True] * nodes  # for commands: online, and what it holds is known

    def active(self) -> list[LiveJob]:
        """Jobs that were submitted and have not ended, in order of submission."""
        return [live for live in self.jobs.values() if live.phase is not Phase.COMING and not live.ended]

    def placeable(self) -> list[LiveJob]:
        """Active jobs that the policy can do something with, in order of submission."""
        return [live for live in self.active() if not live.stranded and not live.withdrawn]

    @property
    def finished(self) -> bool:
        """Whether every job has ended."""
        return all(live.ended for live in self.jobs.values())

    def view(self, trace_s: float, now_s: float, time_scale: float, *, estimates: bool) -> ClusterView:
        """Return what the policy sees: the intended state, so that a plan under way is not decided again."""
        active = self.placeable()
        task_node: list[int] = []
        states: list[int] = []
        for live in active:
            target = live.intended
            task_node += target.nodes if target else [NOT_PLACED] * live.job.tasks
            idle = JobState.PAUSED if live.was_started else JobState.WAITING
            states.append(JobState.RUNNING if target else idle)
        nan = float("nan")
        return ClusterView(
            time_s=trace_s,
            node_available=np.array(self.node_available, dtype=np.bool_),
            job_id=np.array([live.job_id for live in active], dtype=np.int64),
            submit_time_s=np.array([live.job.submit_time_s for live in active], dtype=np.float64),
            tasks=np.array([live.job.tasks for live in active], dtype=np.int64),
            cpu_need_frac=np.array([live.job.cpu_need_frac for live in active], dtype=np.float64),
            mem_req_frac=np.array([live.job.mem_req_frac for live in active], dtype=np.float64),
            virtual_time_s=np.array([live.virtual_time_s(now_s, time_scale) for live in active], dtype=np.float64),
            state=np.array(states, dtype=np.int8),
            task_node=np.array(task_node, dtype=np.int64),
            start_time_s=np.array(
                [nan if live.start_trace_s is None else live.start_trace_s for live in active],
                dtype=np.float64,
            ),
            estimate_s=np.array([live.job.batch_estimate_s if estimates else nan for live in active], dtype=np.float64),
        )

    def targets(self, view: ClusterView, decision: Decision) -> dict[int, Target]:
        """Read a decision: job id to target, of the jobs that shall run."""
        targets: dict[int, Target] = {}
        first = 0
        for row, job_id in enumerate(view.job_id.tolist()):
            count = int(view.tasks[row])
            nodes = tuple(decision.task_node[first : first + count].tolist())
            first += count
            if nodes[0] == NOT_PLACED:
                continue
            before = self.jobs[job_id].intended
            if before is not None:
                nodes = stable_nodes(before.nodes, nodes)
            targets[job_id] = Target(nodes, float(decision.yield_frac[row]))
        return targets
