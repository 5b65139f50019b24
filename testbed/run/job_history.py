"""The state of one job of a run, and how each event changes it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from testbed.run import copies, events, guest_reports
from testbed.run.intents import Flight
from testbed.run.intents import Wanted as Wanted  # noqa: PLC0414  # one of the names of this module
from testbed.run.interruptions import LIVE, MIGRATION, PREEMPTION, SAVE_RESTORE
from testbed.run.interruptions import Interruption as Interruption  # noqa: PLC0414  # one of the names of this module
from testbed.run.phases import COURSES, ENDED, IllegalEventError, Phase
from testbed.scheduling.places import stable_nodes

_CREATING: Final = ("start", "restore")
_NEW_LIFE: Final = (*_CREATING, "migrate")
JobEvent: TypeAlias = (
    events.Stranded | events.Intent | events.Retry | events.Outcome | events.Migration | events.Rescheduling
    | events.ReschedulingCutOff | events.Suspension | events.Cleared | events.ImagesDropped | events.Guest
    | events.Replicated | events.Doubt | events.FenceAwaited
)  # fmt: skip


@dataclass(slots=True, kw_only=True)
class JobHistory:
    """The state of one job. Times named `*_trace_s` are trace seconds, others wall seconds since the run began.

    * `running_on`: nodes on which memory is held, from the intent of a start or restore until the guests are gone
    * `migrating_to`: nodes that hold memory, too, until the location of each guest of a live migration is known
    * `image_holders`: copies of images that exist or may exist, as (node, name); `whole_copies`: the complete ones;
      `copying`: second copies that were begun
    * `units_done`: work units that guests reported with their events; the points of the run have those of each second
    * `decisions`: number of decisions that included the job; `virtual_time_s`: its virtual time at the last of them
    * `word`: the state in its last `job` entry
    * `unready`: tasks whose guests are being created, or have not progressed since their restore
    * `placed_s`: time of the last order to create the guests; `left_s`: end of the last save
    * `was_done`: whether the job ended successfully, even if a later check found its result wrong
    * `begun`: 0, or the number of the restart at which the guests last started from the beginning, with new names
    * `generation`: number of the guests' life, part of all commands about them; each attempt to start, restore or
      migrate them increments it
    * `fenced_on`: nodes on which guests of the withdrawn job may still run
    * `blind`: times without a controller while the job was active
    """

    job: int
    tasks: int = 0
    submit_trace_s: float | None = None
    cpu_need_frac: float = 0.0
    mem_req_frac: float = 0.0
    run_time_s: float | None = None
    memory_mib: int | None = None
    cpu_cores: float | None = None

    phase: Phase = Phase.COMING
    word: str = "coming"
    guests: tuple[str, ...] = ()
    running_on: tuple[int, ...] | None = None
    migrating_to: tuple[int, ...] | None = None
    live_refused: bool = False
    saved_on: tuple[int, ...] | None = None
    images: tuple[events.Image, ...] = ()
    image_holders: set[tuple[int, str]] = field(default_factory=set)
    whole_copies: set[tuple[int, str]] = field(default_factory=set)
    copying: set[tuple[int, str]] = field(default_factory=set)
    yield_frac: float = 0.0
    caps_cores: tuple[float, ...] = ()
    flight: Flight | None = None
    wanted: Wanted | None = None
    was_started: bool = False
    start_s: float | None = None
    start_trace_s: float | None = None
    end_s: float | None = None
    end_trace_s: float | None = None
    decisions: int = 0
    virtual_time_s: float = 0.0
    units_done: dict[int, int] = field(default_factory=dict)
    progressed: set[int] = field(default_factory=set)
    unready: set[int] = field(default_factory=set)
    finished_tasks: set[int] = field(default_factory=set)
    unchecked: dict[int, int] = field(default_factory=dict)
    checksums: dict[int, str] = field(default_factory=dict)
    doubts: dict[int, str] = field(default_factory=dict)
    been: set[tuple[int, int]] = field(default_factory=set)
    placed_s: float = 0.0
    left_s: float = 0.0
    was_done: bool = False
    failure_code: str | None = None
    failure_text: str = ""
    stranded_code: str | None = None
    stranded: str = ""
    withdrawn: str = ""
    restarts: int = 0
    begun: int = 0
    generation: int = 0
    fenced_on: tuple[int, ...] = ()
    interruptions: list[Interruption] = field(default_factory=list)
    blind: list[tuple[float, float]] = field(default_factory=list)

    @property
    def active(self) -> bool:
        """Whether it was submitted and has not ended."""
        return self.phase is not Phase.COMING and self.phase not in ENDED

    @property
    def ended(self) -> bool:
        """Whether it is done or failed."""
        return self.phase in ENDED

    @property
    def moving(self) -> bool:
        """Whether its guests are being saved or migrated live, to continue later or elsewhere."""
        return self.phase is Phase.SAVING or self.migrating_to is not None

    @property
    def reschedulings(self) -> list[Interruption]:
        """The preemptions and migrations of the job: its interruptions without pauses of the operator."""
        return [each for each in self.interruptions if each.is_rescheduling]

    @property
    def preemptions(self) -> int:
        """Number of its preemptions."""
        return sum(each.reason == PREEMPTION for each in self.interruptions)

    @property
    def migrations(self) -> int:
        """Number of its migrations, by images or live."""
        return sum(each.reason == MIGRATION for each in self.interruptions)

    @property
    def state(self) -> str:
        """Its state for a person: `coming`, `waiting`, `running`, `paused`, `done` or `failed`."""
        if self.phase is Phase.COMING or self.ended:
            return self.phase.value
        if not self.was_started:
            return "waiting"
        return "paused" if self.wanted is None else "running"

    def places(self, task: int) -> frozenset[int]:
        """Return the nodes on which a task holds memory: none, one, or two while it migrates live."""
        return frozenset(nodes[task] for nodes in (self.running_on, self.migrating_to) if nodes and task < len(nodes))

    def on_node(self, node: int) -> tuple[int, ...]:
        """Return the tasks that hold memory on a node."""
        return tuple(task for task in range(self.tasks) if node in self.places(task))

    def apply(self, event: JobEvent) -> bool:
        """Apply one event about this job; return whether it counts.

        An event of a guest that does not fit the state does not count. Raises `IllegalEventError` for an event that
        contradicts the state, which is then unchanged.
        """
        match event:
            case events.Stranded() | events.Doubt():
                self._note(event)
            case events.Intent():
                self._intend(event)
            case events.Retry():
                self._retry()
            case events.Outcome():
                self._end(event)
            case events.Migration():
                self._arrive(event)
            case events.Rescheduling() | events.ReschedulingCutOff() | events.Suspension():
                self._account(event)
            case events.Cleared() | events.FenceAwaited():
                self._clear(event)
            case events.ImagesDropped() | events.Replicated():
                copies.change(self, event)
            case events.Guest():
                return guest_reports.hear(self, event)
        return True

    def _note(self, event: events.Stranded | events.Doubt) -> None:
        if isinstance(event, events.Doubt):
            self.doubts[event.task] = event.reason
        else:
            self.stranded_code, self.stranded = event.code, event.detail or event.code or ""

    # --- events about jobs ----------------------------------------------------------------------------------

    def learn(self, job: events.TraceJob) -> None:
        """Apply the data of the trace."""
        self.tasks, self.submit_trace_s, self.run_time_s = job.tasks, job.submit_time_s, job.run_time_s
        self.cpu_need_frac, self.mem_req_frac = job.cpu_need_frac, job.mem_req_frac
        self.memory_mib, self.cpu_cores = job.memory_mib, job.cpu_cores

    def show(self, submit_trace_s: float, tasks: int, needs_frac: tuple[float, float], virtual_time_s: float) -> None:
        """Apply the view of a policy: submission, tasks, their needs of CPU and memory, and progress."""
        self.decisions += 1
        self._tell_need(needs_frac[0])
        self.submit_trace_s, self.tasks, self.virtual_time_s = submit_trace_s, tasks, virtual_time_s
        self.cpu_need_frac, self.mem_req_frac = needs_frac

    def _tell_need(self, cpu_need_frac: float) -> None:
        """Change the CPU need, and adjust the yield to it, because the caps of the guests stay unchanged."""
        before = self.cpu_need_frac
        if cpu_need_frac == before or before <= 0.0:
            return
        self.yield_frac *= before / cpu_need_frac
        if self.flight is not None:
            self.flight = replace(self.flight, yield_frac=self.flight.yield_frac * before / cpu_need_frac)
        if self.cpu_cores is not None:
            self.cpu_cores *= cpu_need_frac / before

    def miss(self, holders: set[tuple[int, str]]) -> None:
        """Remove copies of images that nodes do not have any more.

        Copies in progress are kept: a node may complete a copy after its report.
        """
        gone = holders - self.copying - (frozenset() if self.flight is None else self.flight.writes)
        self.image_holders -= gone
        self.whole_copies -= gone

    def decide(self, wanted: Wanted | None) -> None:
        """Apply the intent of a decision; tasks keep their nodes as far as possible."""
        if wanted is not None and self.wanted is not None and wanted.nodes != self.wanted.nodes:
            wanted = Wanted(stable_nodes(self.wanted.nodes, wanted.nodes), wanted.yield_frac)
        self.wanted = wanted
        self._reschedule()

    def _reschedule(self) -> None:
        """Turn a pause into a preemption or migration if the job does not resume on its old nodes."""
        present, wanted = self.present, self.wanted
        if present is None or present.is_rescheduling or present.restore_begin_s is not None:
            return
        if wanted is None:
            present.reason, present.wanted_s = PREEMPTION, None
        elif sorted(wanted.nodes) != sorted(present.saved_on):
            present.reason = MIGRATION

    def change(self, event: events.Job, *, cleared: bool) -> None:
        """Apply a change of its state; `cleared` if the guests of a failed or withdrawn job count as gone at once."""
        match event.state:
            case "submitted":
                self._submit(event)
            case "running" | "paused" | "resumed" | "moving":
                self._choose(event)
            case "done":
                self._done(event)
            case "failed":
                self._fail(event, cleared=cleared)
            case "withdrawn":
                if not self.active or self.withdrawn:
                    raise self.illegal(event, "withdrawn", "expected a job that is active")
                self.withdrawn, self.wanted = event.detail or "withdrawn", None
                if cleared:
                    self.running_on = self.migrating_to = None
            case "again":
                self._begin_again(event)
        self.word = event.state

    def _submit(self, event: events.Job) -> None:
        if self.phase is not Phase.COMING:
            raise self.illegal(event, Phase.WAITING, "it was submitted before")
        self.phase = Phase.WAITING
        self.submit_trace_s = event.trace_s if self.submit_trace_s is None else self.submit_trace_s

    def _choose(self, event: events.Job) -> None:
        first = event.state == "running"
        if not self.active or self.was_started is first:
            reason = f"expected an active job that was {'never' if first else 'already'} chosen"
            raise self.illegal(event, event.state, reason)
        if first:
            self.was_started, self.start_s, self.start_trace_s = True, event.t_s, event.trace_s
        elif event.state == "resumed" and self.interruptions and self.interruptions[-1].wanted_s is None:
            self.interruptions[-1].wanted_s = event.t_s

    def _done(self, event: events.Job) -> None:
        over = self.flight is None and len(self.finished_tasks) >= self.tasks
        if not self.active or self.withdrawn or not over:
            reason = "expected a job without an operation under way, all of whose tasks have ended"
            raise self.illegal(event, Phase.DONE, reason)
        self.phase, self.end_s, self.end_trace_s, self.was_done = Phase.DONE, event.t_s, event.trace_s, True
        self.wanted = self.running_on = self.migrating_to = None

    def _fail(self, event: events.Job, *, cleared: bool) -> None:
        legal = self.active or (self.phase is Phase.DONE and self.failure_code is None)
        if not legal:
            raise self.illegal(event, Phase.FAILED, "expected a job that is active or done")
        if self.active:
            self.end_s, self.end_trace_s = event.t_s, event.trace_s
        self.phase, self.wanted = Phase.FAILED, None
        self.withdrawn, self.fenced_on = "", ()
        self.failure_code, self.failure_text = event.code, event.detail or ""
        if cleared:
            self.running_on = self.migrating_to = None
            self.image_holders, self.whole_copies = set(), set()

    def _begin_again(self, event: events.Job) -> None:
        """Reset the progress of a job whose guests are gone; it restarts from its images or from the beginning."""
        images_on = event.images_on or None
        if images_on is None and event.detail == "from its last image":  # before version 3
            images_on = self.saved_on or self.been_last()
        wanted = Phase.SAVED if images_on else Phase.WAITING
        if not self.active or not self.withdrawn or self.flight is not None:
            raise self.illegal(event, wanted, "expected a withdrawn job without an operation under way")
        self.restarts += 1
        self.phase, self.saved_on = wanted, images_on
        self.running_on = self.migrating_to = self.wanted = None
        if images_on is None:
            self.images, self.guests, self.begun = (), (), self.restarts
        self.yield_frac, self.virtual_time_s = 0.0, 0.0
        for told in (
            self.units_done, self.progressed, self.finished_tasks, self.unchecked, self.checksums, self.doubts
        ):  # fmt: skip
            told.clear()
        self.live_refused, self.withdrawn, self.fenced_on = False, "", ()

    def been_last(self) -> tuple[int, ...] | None:
        """Return the nodes of the last save, by task; None if the job was never saved."""
        return next((each.saved_on for each in reversed(self.interruptions) if each.saved_on), None)

    # --- operations -----------------------------------------------------------------------------------------

    def _intend(self, event: events.Intent) -> None:
        """Apply the begin of an operation."""
        course, nodes = COURSES.get(event.verb), event.nodes
        if course is None:
            raise self.illegal(event, event.verb, f"expected one of {', '.join(COURSES)}")
        if self.flight is not None:
            raise self.illegal(event, course.during, "another operation is under way")
        if self.phase is not course.before:
            raise self.illegal(event, course.during, f"expected a job that is {course.before}")
        here = self.saved_on if event.verb == "transfer" else self.running_on
        if here is not None and len(here) != len(nodes):
            raise self.illegal(event, course.during, f"expected a node for each of its {len(here)} tasks")
        self.flight = Flight(
            event.action, event.verb, nodes, event.yield_frac, event.t_s, for_a_move=self.wanted is not None,
            writes=_copies(event, here or ()),
        )  # fmt: skip
        self.image_holders |= self.flight.writes
        self.phase, self.guests, self.tasks = course.during, event.guests, self.tasks or len(nodes)
        match event.verb:
            case "start" | "restore":
                self._place(event)
            case "migrate":
                self.migrating_to = nodes
        if event.verb in _NEW_LIFE:
            self.generation += 1
            self.been.update((node, task) for task, node in enumerate(nodes))

    def _place(self, event: events.Intent) -> None:
        self.running_on, self.placed_s = event.nodes, event.t_s
        self.progressed, self.unready = set(), set(range(len(event.nodes)))
        if event.verb == "restore" and self.present is not None and self.present.restore_begin_s is None:
            self.present.restore_begin_s = event.t_s

    def _retry(self) -> None:
        """Apply a new attempt of an operation: created guests are destroyed, and created again."""
        self.generation += self.flight is not None and self.flight.verb in _NEW_LIFE
        if self.flight is not None and self.flight.verb in _CREATING:
            self.unready = set(range(len(self.flight.nodes)))
            for told in (self.progressed, self.finished_tasks, self.unchecked, self.checksums, self.doubts):
                told.clear()

    def _arrive(self, event: events.Migration) -> None:
        """Apply the end of a guest's live migration: it has migrated, or has ended; after an error nothing changes."""
        if event.error is not None:
            return
        flight, task = self.flight, event.task
        if flight is None or flight.verb != "migrate" or self.running_on is None:
            raise self.illegal(event, Phase.MIGRATING, "expected a job that migrates live")
        if task >= len(self.running_on):
            raise self.illegal(event, Phase.MIGRATING, f"it has {len(self.running_on)} tasks")
        self.running_on = (*self.running_on[:task], event.target, *self.running_on[task + 1 :])
        self.unready.discard(task)
        if event.ended:
            return
        if task not in flight.progressed:
            self.progressed.discard(task)
        self.flight = replace(flight, arrived=flight.arrived | {task})

    def _end(self, event: events.Outcome) -> None:
        """Apply the outcome of an operation; after a failure the job returns to its previous phase.

        After a failed live migration both ends hold memory until the job is cleared, unless its guests stayed.
        """
        flight, course = self.flight, COURSES.get(event.verb)
        if flight is None or course is None or (flight.action, flight.verb) != (event.action, event.verb):
            wanted = event.verb if course is None else course.after if event.ok else course.before
            raise self.illegal(event, wanted, "expected the outcome of the operation that is under way")
        self.flight = None
        code = event.failure_code
        if event.ok:
            self._enter(course.after)
            self._succeed(event, flight)
        elif code != events.CANCELLED:
            self._enter(course.before)
            if event.verb in ("start", "restore", "transfer"):
                self.running_on = None
            if event.verb == "migrate" and code == events.STAYS:
                self.live_refused, self.migrating_to = True, None

    def _succeed(self, event: events.Outcome, flight: Flight) -> None:
        present = self.present
        match flight.verb:
            case "start" | "cap":
                self.yield_frac, self.caps_cores = flight.yield_frac, event.caps_cores
                if flight.verb == "start":
                    self.unready.clear()
            case "save":
                self._saved(event, flight)
            case "transfer":
                self.saved_on = flight.nodes
                self._hold_images()
                if present is not None:
                    moves = zip(present.saved_on, flight.nodes, strict=False)
                    present.moved_tasks = sum(a != b for a, b in moves)
                    present.transferred_bytes += event.bytes
                    present.transfer_s += present.observed_s(flight.begin_s, event.t_s)
            case "restore":
                self.yield_frac, self.saved_on = flight.yield_frac, None
                if present is not None:
                    present.restored_bytes += event.bytes
                    present.back_s, present.release_skew_s = event.t_s, event.release_skew_s or 0.0
            case "migrate":
                self._migrated(event, flight)

    def _saved(self, event: events.Outcome, flight: Flight) -> None:
        self.saved_on, self.running_on, self.yield_frac, self.live_refused = self.running_on, None, 0.0, False
        self.images, self.left_s = event.images, event.t_s
        self._hold_images()
        reason = event.reason or (MIGRATION if flight.for_a_move else PREEMPTION)
        self.interruptions.append(
            Interruption(
                reason, SAVE_RESTORE, flight.begin_s, blind=self.blind, saved_on=self.saved_on or (),
                saved_bytes=event.bytes, save_end_s=event.t_s, hold_skew_s=event.hold_skew_s or 0.0,
                wanted_s=flight.begin_s if reason == MIGRATION else None if self.wanted is None else event.t_s,
            )
        )  # fmt: skip

    def _hold_images(self) -> None:
        """Record that the images are complete on their nodes, even if a node returned without them before that."""
        there = set(zip(self.saved_on or (), (image.name for image in self.images), strict=False))
        self.image_holders |= there
        self.whole_copies |= there

    def _migrated(self, event: events.Outcome, flight: Flight) -> None:
        moved = bool(flight.arrived)
        self.running_on, self.migrating_to, self.yield_frac = flight.nodes, None, flight.yield_frac
        if moved:
            self.interruptions.append(
                Interruption(
                    MIGRATION, LIVE, flight.begin_s, blind=self.blind, moved_tasks=len(flight.arrived),
                    migrated_bytes=event.bytes, back_s=event.t_s, downtime_s=event.downtime_s or 0.0,
                )
            )  # fmt: skip

    @property
    def present(self) -> Interruption | None:
        """The last interruption, if it is neither complete nor cut off."""
        last = self.interruptions[-1] if self.interruptions else None
        return None if last is None or last.measured is not None else last

    def _account(self, event: events.Penalty) -> None:
        """Close the account of the present interruption: it is complete, or cut off."""
        present = self.present
        what = "cut off" if isinstance(event, events.ReschedulingCutOff) else "complete"
        if present is None:
            raise self.illegal(event, what, "no preemption or migration of it is open")
        if present.reason != event.reason:
            raise self.illegal(event, what, f"its last one is a {present.reason}")
        present.measured = event

    def forget_accounts(self) -> None:
        """Drop the interruptions to which no later event refers; after this, numbers of interruptions are too low."""
        saved = next((each for each in reversed(self.interruptions) if each.saved_on), None)
        self.interruptions = [each for each in self.interruptions if each in (saved, self.interruptions[-1])]

    def _clear(self, event: events.Cleared | events.FenceAwaited) -> None:
        """Apply that all guests are gone, or may still run on nodes that do not answer."""
        if self.flight is not None or not (self.phase is Phase.FAILED or self.withdrawn):
            raise self.illegal(event, "cleared", "expected a failed or withdrawn job without an operation under way")
        if isinstance(event, events.FenceAwaited):
            self.fenced_on = event.nodes
            return
        self.running_on = self.migrating_to = None
        self.fenced_on = ()

    # --- checks ---------------------------------------------------------------------------------------------

    def _enter(self, phase: Phase) -> None:
        """Change the phase, unless the job has ended meanwhile."""
        if not self.ended:
            self.phase = phase

    def illegal(self, event: events.Entry, wanted: str, reason: str) -> IllegalEventError:
        """Return the error of an event that would change the job to `wanted`."""
        word = str(event.__struct_config__.tag)
        match event:
            case events.Job():
                word = f"job {event.state}"
            case events.Intent() | events.Outcome():
                word = f"{word} {event.verb} {event.action}"
        return IllegalEventError(word, event.t_s, self.job, self.described(), wanted, reason)

    def described(self) -> str:
        """Return its phase and the operation on it, for messages."""
        under_way = [] if self.flight is None else [f"{self.flight.verb} {self.flight.action} under way"]
        more = ", ".join((["withdrawn"] if self.withdrawn else []) + under_way)
        return f"{self.phase.value} ({more})" if more else self.phase.value


def _copies(event: events.Intent, sources: tuple[int, ...]) -> frozenset[tuple[int, str]]:
    """Return the copies of images that an operation makes, as (node, name); `sources` are the nodes before it."""
    match event.verb:
        case "save":
            return frozenset(zip(event.nodes, event.images, strict=False))
        case "transfer":
            moves = zip(sources, event.nodes, event.images, strict=False)
            return frozenset((target, name) for source, target, name in moves if source != target)
    return frozenset()
