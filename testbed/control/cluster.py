"""The controller's model of the live cluster: jobs, their nodes, their progress and their intended state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from testbed.bus.messages import ImageRef
from testbed.bus.telemetry import NeedSample
from testbed.control.move_costs import MoveCosts
from testbed.control.planner import JobStatus, Target, Verb
from testbed.lab.guests import PreparedJob
from testbed.lab.job_guests import JobGuests
from testbed.needs.estimator import error_of
from testbed.run.history import History
from testbed.run.job_history import JobHistory
from testbed.run.phases import Phase
from testbed.scheduling.metrics import bounded_stretch
from testbed.scheduling.policies.view import NOT_PLACED, ClusterView, Ints, JobState, unless
from testbed.scheduling.workload.jobs import Job

LEAST_NEED_FRAC = 0.01  # of a node: lower bound of a measured CPU need


@dataclass(slots=True)
class Progress:
    """Work units by task; `at_s` is the time of the last report, in wall seconds since the run began.

    `highest_s` is the highest virtual time that was derived from them, in trace seconds; it never decreases. `arriving`
    has the tasks that are being taken over after a live migration, and have not progressed since. `ended` has the tasks
    whose end has been processed.
    """

    units: list[int]
    at_s: float = 0.0
    highest_s: float = 0.0
    arriving: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)

    def advance(self, task: int, units: int | None) -> None:
        """Record the work units that a task has done; the value never decreases."""
        if units is not None:
            self.units[task] = max(self.units[task], units)

    def restart(self) -> None:
        """Reset the progress of a job whose guests are gone."""
        self.units, self.highest_s = [0] * len(self.units), 0.0
        self.arriving.clear()
        self.ended.clear()


@dataclass(slots=True, eq=False, kw_only=True)
class LiveJob(JobGuests):
    """One job of the run: its guests, its `state` in the history of the run, and its measured progress.

    Only events of the run change `state`: a reader sees the state after the last event.
    """

    job: Job
    trace_s_per_unit: float
    state: JobHistory
    progress: Progress
    needs_cores: dict[int, float] = field(default_factory=dict)  # CPU needs estimated by nodes, by task
    measured: set[int] = field(default_factory=set)  # the tasks whose estimate is not guessed
    dirty_mib_per_s: dict[int, float] = field(default_factory=dict)  # measured by nodes, by task
    prefers_live: bool = True  # whether it migrates live, where that is possible
    told_need_frac: float = 0.0  # the CPU need that policies have; `take_need` sets it

    def __post_init__(self) -> None:
        """Start with the declared CPU need."""
        self.told_need_frac = self.job.cpu_need_frac

    @property
    def found_need_frac(self) -> float:
        """The measured CPU need of a task, as the highest one of all tasks; the known need for unmeasured tasks."""
        node_cores = self.specs[0].cpu_cores / self.told_need_frac
        measured = [cores / node_cores for cores in self.needs_cores.values()]
        unmeasured = [self.told_need_frac] if len(measured) < len(self.specs) else []
        return min(max([*measured, *unmeasured, LEAST_NEED_FRAC]), 1.0)

    @property
    def most_dirty_mib_per_s(self) -> float:
        """The highest rate at which a task writes to its memory; 0 where it was not measured."""
        return max(self.dirty_mib_per_s.values(), default=0.0)

    def hear_dirty(self, task: int, mib_per_s: float | None) -> None:
        """Take the rate at which a task writes to its memory; None if its node has not measured it again."""
        if mib_per_s is not None:
            self.dirty_mib_per_s[task] = mib_per_s

    def hear_need(self, task: int, need: NeedSample) -> None:
        """Take a node's estimate of a task's CPU need.

        After a restore or a migration the estimator of the new node begins anew. Its guess does not replace a need that
        was measured before, unless the task uses more.
        """
        known_cores = self.needs_cores.get(task, 0.0)
        if need.guessed and task in self.measured and need.least_cores < known_cores - error_of(known_cores):
            return
        self.needs_cores[task] = need.booked_cores
        if need.guessed:
            self.measured.discard(task)
        else:
            self.measured.add(task)

    def take_need(self, need_frac: float) -> None:
        """Change the CPU need: from now on yields are fractions of the new need."""
        factor = need_frac / self.told_need_frac
        if factor != 1.0:
            self.specs = tuple(msgspec.structs.replace(spec, cpu_cores=spec.cpu_cores * factor) for spec in self.specs)
            self.told_need_frac = need_frac

    @classmethod
    def of(cls, prepared: PreparedJob, state: JobHistory) -> LiveJob:
        """Return a job of a run whose state is `state`."""
        return cls(
            job=prepared.job, specs=prepared.specs, trace_s_per_unit=prepared.trace_s_per_unit, state=state,
            progress=Progress([0] * len(prepared.specs)),
        )  # fmt: skip

    @classmethod
    def resumed(cls, prepared: PreparedJob, state: JobHistory, now_s: float) -> LiveJob:
        """Return a job of a run that another controller began, with the progress that the journal has."""
        live = cls.of(prepared, state)
        if state.begun:
            live.rename(state.begun)
        live.progress.units = [state.units_done.get(task, 0) for task in range(len(prepared.specs))]
        live.progress.at_s, live.progress.highest_s = now_s, state.virtual_time_s
        live.progress.ended |= state.finished_tasks
        if state.decisions:
            live.take_need(state.cpu_need_frac)
        return live

    @property
    def job_id(self) -> int:
        """The id in the trace."""
        return self.job.job_id

    def taken_over(self, task: int) -> None:
        """See `JobGuests`."""
        self.progress.arriving.add(task)

    @property
    def advances(self) -> bool:
        """Whether every task has progressed since it was last started, restored or taken over."""
        state = self.state
        there = state.phase in (Phase.RUNNING, Phase.MIGRATING) and not self.progress.arriving
        return there and len(state.progressed) == len(self.specs)

    def held_mib(self, node: int) -> int:
        """Memory that the job holds on a node."""
        return self.memory_mib * len(self.state.on_node(node))

    def images(self) -> tuple[ImageRef, ...]:
        """Return the images of the job's last save, by task."""
        return tuple(
            [
                ImageRef(image=image.name, bytes=image.bytes, digest=image.digest, generation=image.generation)
                for image in self.state.images
            ]
        )

    def image_copies(self) -> list[set[int]]:
        """Return the nodes that have, or may have, a copy of each task's last image; empty without images."""
        state = self.state
        return [{node for node, name in state.image_holders if name == image.name} for image in state.images]

    def virtual_time_s(self, now_s: float, time_scale: float) -> float:
        """Progress in dedicated trace seconds: the last report, extrapolated at the present yield.

        It measures the work actually done, so it does not advance while the job is paused, moved or delayed, and needs
        no knowledge of the run time. It never decreases.
        """
        measured_s, progress = self.measured_virtual_time_s(), self.progress
        if self.advances and not self.state.finished_tasks:
            measured_s += self.state.yield_frac * (now_s - progress.at_s) * time_scale
        progress.highest_s = max(progress.highest_s, measured_s)
        return progress.highest_s

    def measured_virtual_time_s(self) -> float:
        """Reported progress, in dedicated trace seconds."""
        return min(self.progress.units) * self.trace_s_per_unit

    def stretch(self, tau_s: float) -> float | None:
        """Bounded stretch of a job that ended successfully, None for others."""
        end_s = self.state.end_trace_s
        if self.state.phase is not Phase.DONE or end_s is None:
            return None
        return float(bounded_stretch(end_s - self.job.submit_time_s, self.job.run_time_s, tau_s))

    def begin_again(self) -> None:
        """Reset its progress, because its guests are gone.

        Guests that start from the beginning have new names, so that no late message is attributed to them.
        """
        self.progress.restart()
        self.needs_cores.clear()
        self.measured.clear()
        self.dirty_mib_per_s.clear()
        if self.state.begun == self.state.restarts:
            self.rename(self.state.begun)

    def rename(self, life: int) -> None:
        """Rename the guests for their life after restart number `life`, which began from the beginning."""
        self.specs = tuple(
            msgspec.structs.replace(spec, guest=f"{spec.guest.partition('-r')[0]}-r{life}") for spec in self.specs
        )

    def status(self) -> JobStatus:
        """Return the state that the job has after its operation in flight, for the planner."""
        state, flight = self.state, self.state.flight
        running, saved, yield_frac = state.running_on, state.saved_on, state.yield_frac
        if flight is not None:
            match Verb(flight.verb):
                case Verb.SAVE:
                    running, saved, yield_frac = None, flight.nodes, 0.0
                case Verb.TRANSFER:
                    saved = flight.nodes
                case Verb.START | Verb.RESTORE | Verb.CAP | Verb.MIGRATE:
                    running, saved, yield_frac = flight.nodes, None, flight.yield_frac
        return JobStatus(
            self.job_id, self.memory_mib, running, yield_frac, saved, live=self.prefers_live and not state.live_refused
        )


def _image_nodes(jobs: Iterable[LiveJob]) -> Ints:
    """Return the node of the image of each task of the jobs that are not to run, NOT_PLACED for tasks without one.

    A job that is still to be saved gets its images where it runs.
    """
    nodes: list[int] = []
    for live in jobs:
        status = live.status()
        there = None if live.state.wanted else status.saved_on or status.running_on
        nodes += there or [NOT_PLACED] * live.job.tasks
    return np.array(nodes, dtype=np.int64)


class Cluster:
    """All jobs of the run by id, in order of submission, and its history, which has the available nodes."""

    def __init__(self, jobs: Sequence[LiveJob], history: History) -> None:
        self.jobs = {live.job_id: live for live in jobs}
        self.history = history

    def add(self, live: LiveJob) -> None:
        """Add a job that a user submitted to a served lab."""
        self.jobs[live.job_id] = live

    def reachable(self, node: int) -> bool:
        """Whether a node can be commanded: it is online, and its guests are known."""
        return self.history.nodes[node].reachable

    def takes_guests(self, nodes: Iterable[int]) -> bool:
        """Whether none of these nodes is drained."""
        return not any(self.history.nodes[node].drained for node in nodes)

    def active(self) -> list[LiveJob]:
        """Jobs that were submitted and have not ended, in order of submission."""
        return [live for live in self.jobs.values() if live.state.active]

    def placeable(self) -> list[LiveJob]:
        """Active jobs that the policy can act on, in order of submission."""
        return [live for live in self.active() if not live.state.stranded and not live.state.withdrawn]

    def movable(self) -> list[LiveJob]:
        """Jobs that the planner considers, including running jobs that the policy cannot place any more."""
        running = (live for live in self.active() if live.state.running_on is not None or not live.state.stranded)
        return [live for live in running if not live.state.withdrawn]

    @property
    def finished(self) -> bool:
        """Whether every job has ended, and no more jobs can be submitted."""
        return not self.history.awaits_jobs and all(live.state.ended for live in self.jobs.values())

    def view(
        self, trace_s: float, now_s: float, time_scale: float, *, estimates: bool, costs: MoveCosts | None = None
    ) -> ClusterView:
        """Return the policy's view: the intended state, so that a plan in progress is not decided again.

        It has estimates of run times only with `estimates`, and costs of moves only with `costs`.
        """
        active = self.placeable()
        task_node: list[int] = []
        states: list[int] = []
        for live in active:
            target = live.state.wanted
            task_node += target.nodes if target else [NOT_PLACED] * live.job.tasks
            idle = JobState.PAUSED if live.state.was_started else JobState.WAITING
            states.append(JobState.RUNNING if target else idle)
        nan = float("nan")
        return ClusterView(
            time_s=trace_s,
            node_available=np.array([node.available for node in self.history.nodes], dtype=np.bool_),
            job_id=np.array([live.job_id for live in active], dtype=np.int64),
            submit_time_s=np.array([live.job.submit_time_s for live in active], dtype=np.float64),
            tasks=np.array([live.job.tasks for live in active], dtype=np.int64),
            cpu_need_frac=np.array([live.found_need_frac for live in active], dtype=np.float64),
            mem_req_frac=np.array([live.job.mem_req_frac for live in active], dtype=np.float64),
            virtual_time_s=np.array([live.virtual_time_s(now_s, time_scale) for live in active], dtype=np.float64),
            state=np.array(states, dtype=np.int8),
            task_node=np.array(task_node, dtype=np.int64),
            start_time_s=np.array(
                [nan if live.state.start_trace_s is None else live.state.start_trace_s for live in active],
                dtype=np.float64,
            ),
            estimate_s=np.array([live.job.batch_estimate_s if estimates else nan for live in active], dtype=np.float64),
            urgent=np.array([live.job.urgent for live in active], dtype=np.bool_),
            weight=unless(np.array([live.job.weight for live in active], dtype=np.float64), 1.0),
            least_yield_frac=unless(np.array([live.job.least_yield_frac for live in active], dtype=np.float64), 0.0),
            move_cost_s=None
            if costs is None
            else costs.of([live.job for live in active], [live.most_dirty_mib_per_s for live in active]),
            image_node=None if costs is None else _image_nodes(active),
        )

    def targets(self) -> Mapping[int, Target]:
        """Return the last decision's targets of the jobs that are to run, by id."""
        return {live.job_id: live.state.wanted for live in self.active() if live.state.wanted is not None}
