"""The record of all events of a run: journal, points, and lines for the display."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import msgspec

from testbed.bus.failure_codes import Failure
from testbed.bus.messages import AgentLimit, ImageRef
from testbed.bus.suspicious_acts import Act, ActKind, ActLog, plain, told
from testbed.control.cluster import LiveJob
from testbed.control.image_room import Shortage
from testbed.control.paced_lines import PacedLines
from testbed.control.planner import PlannedAction, Target, Verb
from testbed.errors import RunError
from testbed.lab.liveness import Standing
from testbed.measure.points import PointError, Value
from testbed.measure.rundir import RunDirectory
from testbed.run import events
from testbed.run.history import History
from testbed.run.ledger import Ledger

_MIB = 1 << 20
JobState = Literal["submitted", "running", "paused", "resumed", "moving", "withdrawn", "again", "done"]
_PHASES = (
    "save_s", "paused_s", "wait_s", "transfer_s", "restore_s", "live_s", "downtime_s", "first_progress_s", "penalty_s",
    "hold_skew_s", "release_skew_s", "held_s",
)  # fmt: skip
_AMOUNTS = ("saved_bytes", "transferred_bytes", "restored_bytes", "migrated_bytes")


@dataclass(slots=True)
class CapWindow:
    """Requested against achieved CPU of one guest over a window with one constant cap, in cores.

    `drifted`: the window ended because the cap in force differed from the one that was set.
    """

    program: str
    requested_cores: float
    achieved_cores: float
    window_s: float
    drifted: bool = False


@dataclass(slots=True)
class Recorder:
    """Writes to the run directory, and keeps the ledger of the run: its history has all events of the journal.

    `now_s` returns wall seconds since the run began, and `anchor_ns` is the Unix time of that moment.
    `watch(trace_s, text)` gets one line for each event of interest to the user. `tau_s` is the threshold of the bounded
    stretch. `past` is the history of a run that another controller began.

    A point that does not fit the schema is a bug, but must not end a run: it is left out, reported once per measurement
    and field, and counted in `refused`. A dry run, whose loss costs little, fails at its end because of it.
    """

    directory: RunDirectory
    now_s: Callable[[], float]
    trace_s: Callable[[], float]
    anchor_ns: int = 0
    watch: Callable[[float, str], None] = lambda _trace_s, _text: None
    node_names: Sequence[str] = ()
    cap_windows: list[CapWindow] = field(default_factory=list)
    decide_s: list[float] = field(default_factory=list)
    tau_s: float = 10.0
    refused: Counter[str] = field(default_factory=Counter)
    first_refusal: PointError | None = None
    past: History | None = None
    acts: ActLog = field(init=False)
    ledger: Ledger = field(init=False)
    _lines: PacedLines = field(init=False)

    def __post_init__(self) -> None:
        """Report suspicious acts to the journal and the display."""
        self.acts = ActLog(self._suspicious, now_s=self.now_s)
        self.ledger = Ledger(self.directory.journal, self.past)
        self._lines = PacedLines(self.say, self.now_s)

    def _suspicious(self, acts: Sequence[Act]) -> None:
        found = msgspec.convert(plain(acts), tuple[events.SuspiciousAct, ...])
        self.journal(events.Suspicious(*self.times(), acts=found))
        self.say(told(acts))

    def suspect(self, node: int, kind: ActKind, what: object) -> None:
        """Record a suspicious act of a node."""
        self.acts.note(self._name(node), kind, what)

    def say_of(self, node: str, text: str) -> None:
        """Show one line that a node has caused, at a limited rate, so that no node can fill the screen."""
        self._lines.put(node, text)

    def time_ns(self) -> int:
        """Unix time of now in nanoseconds: the anchor of the run plus the monotonic clock."""
        return self.anchor_ns + int(self.now_s() * 1e9)

    def times(self) -> tuple[float, float]:
        """Return the two times of an event that happens now: wall seconds since the run began, and trace time."""
        return round(self.now_s(), 6), round(self.trace_s(), 3)

    @property
    def history(self) -> History:
        """The state of the run after all events of the journal."""
        return self.ledger.history

    def journal(self, event: events.Event) -> bool:
        """Append one event to the journal, and apply it; return whether it counts (see `Ledger.record`)."""
        counts = self.ledger.record(event)
        self._report_recorders()
        return counts

    def close(self) -> None:
        """Let the plug-in recorders finish, and close the run directory."""
        self.acts.flush()
        with contextlib.suppress(RunError):  # the caller reports a failure of the directory
            self.directory.sync()  # recorders may read its files
        self.directory.recorders.close()
        try:
            self._report_recorders()
        finally:
            self.directory.close()

    def _report_recorders(self) -> None:
        """Report once that a failed recorder is left out from now on."""
        for name, reason in self.directory.recorders.failures():
            self.journal(events.RecorderFailed(*self.times(), name=name, error=reason))
            self.say(f"recorder {name} is left out: {reason}")

    def point(
        self, measurement: str, tags: Mapping[str, str], fields: Mapping[str, Value], time_ns: int | None = None
    ) -> None:
        """Append one point with Unix time `time_ns`, by default now; refuse a point that does not fit the schema."""
        try:
            self.directory.point(measurement, tags, fields, self.time_ns() if time_ns is None else time_ns)
        except PointError as error:
            self.refused[error.where] += 1
            self.first_refusal = self.first_refusal or error
            if self.refused[error.where] == 1:
                self.journal(events.Refused(*self.times(), point=error.where, error=str(error)))
                self.say(f"a measurement is left out each time: {error}")

    def stage(self, stage: str, elapsed_s: float) -> None:
        """Record the end of a stage of the run."""
        self.point("run", {"stage": stage}, {"elapsed_s": elapsed_s})

    def calibration(self, units_per_core_s: Mapping[str, float]) -> None:
        """Record the dedicated rate of each shape of job."""
        for shape, rate in units_per_core_s.items():
            self.point("calibration", {"shape": shape}, {"units_per_core_s": rate})

    def node(self, name: str, standing: Standing, reason: str) -> None:
        """Record that a node is suspect or lost, has returned, or has a new agent."""
        online = standing is Standing.ONLINE
        self.journal(events.Node(*self.times(), node=name, online=online, standing=standing.value, reason=reason))
        self.point("node_state", {"node": name}, {"online": online, "reason": "" if online else reason})
        self.say_of(name, f"node {name} is {standing.value}: {reason}")

    def limit(self, name: str, limit: AgentLimit, text: str) -> None:
        """Record that an agent has reached a bound on its own resources, or is below it again."""
        self.journal(events.Limit(*self.times(), node=name, **msgspec.structs.asdict(limit)))
        self.say(text)

    def decision(self, active: Sequence[LiveJob], targets: Mapping[int, Target], decide_s: float) -> None:
        """Record a decision that took `decide_s` seconds, on the jobs in the system, whose targets are set already."""
        self.decide_s.append(decide_s)
        needs = {live.job_id: live.told_need_frac * live.job.tasks for live in active}
        yields = {job: target.yield_frac for job, target in targets.items()}
        idle = [live for live in active if live.job_id not in targets]
        self.point(
            "decision",
            {},
            {
                "trace_s": self.trace_s(),
                "decide_s": decide_s,
                "jobs": len(active),
                "running": len(targets),
                "waiting": sum(not live.state.was_started for live in idle),
                "paused": sum(live.state.was_started for live in idle),
                "min_yield_frac": min(yields.values(), default=0.0),
                "mean_yield_frac": sum(yields.values()) / len(yields) if yields else 0.0,
                "demand_frac": sum(needs.values()),
                "useful_frac": sum(yields[job] * needs[job] for job in yields),
            },
        )

    def job(self, live: LiveJob, state: JobState, text: str = "", images_on: Sequence[int] = ()) -> None:
        """Record a change of a job's state; for failures see `fail`.

        `images_on` are the nodes of the images from which a job restarts.
        """
        self._job(live, state, detail=text or None, images_on=images_on)
        self.say(f"job {live.job_id} {state}{': ' + text if text else ''}")

    def fail(self, live: LiveJob, why: Failure, *, withdrawn: bool = False) -> None:
        """Record that a job fails, unless it has failed already; its entry always has a code.

        A withdrawn job is about to restart, and fails only with `withdrawn`: the restart is impossible.
        """
        if live.state.failure_code is not None or (live.state.withdrawn and not withdrawn):
            return
        self._job(live, "failed", code=why.code.value, detail=why.text)
        self.say(f"job {live.job_id} failed ({why.code}): {why.text}")

    def stranded(self, live: LiveJob, why: Failure | None) -> None:
        """Record that a job cannot be placed while nodes are lost, or that it can be placed again."""
        code, detail = (None, None) if why is None else (why.code.value, why.text)
        self.journal(events.Stranded(*self.times(), job=live.job_id, code=code, detail=detail))

    def _job(
        self, live: LiveJob, state: JobState | Literal["failed"], *, code: str | None = None, detail: str | None,
        images_on: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.journal(
            events.Job(
                *self.times(), job=live.job_id, state=state, code=code, detail=detail, images_on=tuple(images_on)
            )
        )
        past = live.state
        fields: dict[str, Value] = {
            "state": state,
            "trace_s": self.trace_s(),
            "tasks": live.job.tasks,
            "preemptions": past.preemptions,
            "migrations": past.migrations,
            "penalty_s": sum((each.so_far_s for each in past.reschedulings), 0.0),
        }
        stretch = live.stretch(self.tau_s)
        if stretch is not None and past.end_trace_s is not None:
            fields |= {"flow_time_s": past.end_trace_s - live.job.submit_time_s, "stretch": stretch}
        self.point("job", {"job": str(live.job_id)}, fields)

    def where(self, nodes: Sequence[int]) -> str:
        """Return the names of nodes, with the number of tasks on each."""
        names = [self._name(node) for node in sorted(set(nodes))]
        counts = [nodes.count(node) for node in sorted(set(nodes))]
        return ", ".join(name if count == 1 else f"{name} x{count}" for name, count in zip(names, counts, strict=True))

    def say(self, text: str) -> None:
        """Show one line on the display."""
        self.watch(self.trace_s(), text)

    def intent(
        self, number: int, action: PlannedAction, guests: Sequence[str], images: Sequence[str] = ()
    ) -> None:  # fmt: skip
        """Journal an operation before its first command; raises `RunError` if the write fails."""
        self.journal(
            events.Intent(
                *self.times(), action=number, verb=action.verb.value, job=action.job_id, nodes=action.nodes,
                yield_frac=action.yield_frac, guests=tuple(guests), images=tuple(images),
            )
        )  # fmt: skip
        if self.directory.failure is not None:
            raise self.directory.failure
        at = f" at yield {action.yield_frac:.2f}" if action.yield_frac else ""
        self.say(f"    {action.verb.value} job {action.job_id} on {self.where(action.nodes)}{at}")

    async def durable(self) -> None:
        """Wait until all present entries survive a loss of power; raises `RunError` if they cannot be written."""
        await self.directory.durable(self.ledger.written)

    def no_room(self, job: int, verb: Verb, short: Shortage) -> None:
        """Record that an operation on a job waits, because a node has no space for its images."""
        self.journal(events.NoRoom(*self.times(), job=job, verb=verb.value, **asdict(short)))
        self.say(
            f"    no {verb.value} of job {job}: it needs {short.needed_mib} MiB on {self._name(short.node)}, "
            f"{short.free_mib} MiB are free for images"
        )

    def outcome(
        self, number: int, action: PlannedAction, *, elapsed_s: float, waited_s: float, moved: int, error: str | None,
        phases: Mapping[str, float], code: str | None = None, caps_cores: Sequence[float] = (),
        reason: str | None = None, images: Sequence[ImageRef] = (),
    ) -> None:  # fmt: skip
        """Record the end of an operation, with `code` if it failed.

        `caps_cores` are the caps in force after it, by task and as read back, if the operation set caps. `reason` is
        the reason of the preemption or migration that began with it; `images` are the images written.
        """
        self.journal(
            events.Outcome(
                *self.times(), action=number, verb=action.verb.value, job=action.job_id, nodes=action.nodes,
                ok=error is None, error=error, code=code, reason=reason,
                images=tuple(map(_image, images)),
                elapsed_s=round(elapsed_s, 6), waited_s=round(waited_s, 6), bytes=moved,
                caps_cores=tuple([round(cores, 6) for cores in caps_cores]), **_rounded(phases),
            )
        )  # fmt: skip
        self.point(
            "action",
            {"job": str(action.job_id), "verb": action.verb.value},
            {"elapsed_s": elapsed_s, "waited_s": waited_s, "bytes": moved, "ok": error is None},
        )
        for name, value in phases.items():
            tags = {"job": str(action.job_id), "verb": action.verb.value, "phase": name.removesuffix("_s")}
            self.point("action_phase", tags, {"elapsed_s": value})

    def rescheduling(self, account: events.Rescheduling) -> None:
        """Record a complete preemption or migration."""
        self.journal(account)
        fields: dict[str, Value] = {name: getattr(account, name) for name in (*_PHASES, *_AMOUNTS)}
        tags = {"job": str(account.job), "reason": account.reason, "mechanism": account.mechanism}
        self.point("rescheduling", tags, {**fields, **_rates(account), "moved_tasks": account.moved_tasks})

    def migration(self, *, job: int, task: int, source: int, target: int, **entry: Any) -> None:
        """Record a live migration of a guest with its costs, or its failure with `error` and the guest's location.

        `entry` has the other fields of `events.Migration`.
        """
        event = events.Migration(*self.times(), job=job, task=task, source=source, target=target, **entry)
        self.journal(event)
        if event.error is not None or event.ended:
            return
        tags = {"job": str(job), "task": str(task), "source": self._name(source), "node": self._name(target)}
        fields: dict[str, Value] = {name: value for name, value in entry.items() if value is not None}
        if event.bytes and event.elapsed_s:
            fields["mib_per_s"] = event.bytes / _MIB / event.elapsed_s
        self.point("migration", tags, fields)

    def cap_drift(self, tags: Mapping[str, str], found_cores: float, expected_cores: float) -> None:
        """Record that the cap in force of a guest (tags node, job, task) differs from the expected one; -1: no cap."""
        self.point("cap_drift", tags, {"found_cores": found_cores, "expected_cores": expected_cores})
        self.say_of(
            tags["node"],
            f"cap of job {tags['job']} task {tags['task']} on {tags['node']} was "
            f"{'gone' if found_cores < 0 else f'{found_cores:.3f} cores'}: set to {expected_cores:.3f} again",
        )

    def doubt(self, job: int, task: int, node: int, reason: str) -> None:
        """Record that the work rate of a finished task is impossible on its node."""
        self.journal(events.Doubt(*self.times(), job=job, task=task, node=node, reason=reason))
        self.suspect(node, ActKind.FALSE_REPORT, f"job {job} task {task}: {reason}")
        self.say_of(self._name(node), f"job {job} task {task} on {self._name(node)}: {reason}")

    def _name(self, node: int) -> str:
        return self.node_names[node] if node < len(self.node_names) else str(node)

    def cap_window(self, tags: Mapping[str, str], window: CapWindow) -> None:
        """Record a window of constant cap that is over."""
        self.cap_windows.append(window)
        fields = asdict(window)
        del fields["program"]
        self.point("cap", tags, fields)


def _rounded(phases: Mapping[str, float]) -> dict[str, Any]:
    """Return phases in their written form: seconds to the microsecond."""
    return {name: round(value, 6) for name, value in phases.items()}


def _rates(record: events.Penalty) -> dict[str, float]:
    """MiB per second of each phase that moved data."""
    moved = {
        "save": (record.saved_bytes, record.save_s),
        "transfer": (record.transferred_bytes, record.transfer_s),
        "restore": (record.restored_bytes, record.restore_s),
        "live": (record.migrated_bytes, record.live_s),
    }
    return {f"{name}_mib_per_s": amount / _MIB / s for name, (amount, s) in moved.items() if amount and s > 0}


def _image(image: ImageRef) -> events.Image:
    return events.Image(name=image.image, bytes=image.bytes, digest=image.digest, generation=image.generation)
