"""Where everything that happens in a run is written down: journal, points, and whoever watches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from testbed.control.cluster import LiveJob
from testbed.control.planner import PlannedAction
from testbed.control.reschedulings import Rescheduling
from testbed.measure.points import Value
from testbed.measure.rundir import RunDirectory


@dataclass(slots=True)
class CapWindow:
    """Requested against achieved CPU of one guest over a window with one constant cap, in cores."""

    program: str
    requested_cores: float
    achieved_cores: float
    window_s: float


@dataclass(slots=True)
class Recorder:
    """Writes to the run directory.

    `now_s` is wall seconds since the run began, `anchor_ns` the Unix time of that moment; `watch(trace_s, text)` gets
    one line for each thing that a person wants to see pass by.
    """

    directory: RunDirectory
    now_s: Callable[[], float]
    trace_s: Callable[[], float]
    anchor_ns: int = 0
    watch: Callable[[float, str], None] = lambda _trace_s, _text: None
    node_names: Sequence[str] = ()
    cap_windows: list[CapWindow] = field(default_factory=list)
    decide_s: list[float] = field(default_factory=list)

    def time_ns(self) -> int:
        """Unix time by the run's one anchor and the monotonic clock."""
        return self.anchor_ns + int(self.now_s() * 1e9)

    def journal(self, kind: str, **entry: object) -> None:
        """Append one entry, with trace time."""
        self.directory.journal(self.now_s(), kind, {"trace_s": round(self.trace_s(), 3), **entry})
        self._report_recorders()

    def close(self) -> None:
        """Let the recorders that are plugged in finish, and close the run directory."""
        self.directory.recorders.close()
        try:
            self._report_recorders()
        finally:
            self.directory.close()

    def _report_recorders(self) -> None:
        """Say once of a recorder that failed that it is left out from here on."""
        for name, reason in self.directory.recorders.failures():
            self.journal("recorder", name=name, error=reason)
            self.say(f"recorder {name} is left out: {reason}")

    def point(self, measurement: str, tags: Mapping[str, str], fields: Mapping[str, Value]) -> None:
        """Append one point, stamped now."""
        self.directory.point(measurement, tags, fields, self.time_ns())

    def job(self, live: LiveJob, state: str, text: str = "") -> None:
        """A job changed its state."""
        self.journal("job", job=live.job_id, state=state, **({"detail": text} if text else {}))
        self.point("job", {"job": str(live.job_id)}, {"state": state, "trace_s": self.trace_s()})
        self.say(f"job {live.job_id} {state}{': ' + text if text else ''}")

    def where(self, nodes: Sequence[int]) -> str:
        """Name nodes, with the number of tasks on each."""
        names = [self.node_names[node] if node < len(self.node_names) else str(node) for node in sorted(set(nodes))]
        counts = [nodes.count(node) for node in sorted(set(nodes))]
        return ", ".join(name if count == 1 else f"{name} x{count}" for name, count in zip(names, counts, strict=True))

    def say(self, text: str) -> None:
        """Show one line to whoever watches."""
        self.watch(self.trace_s(), text)

    def intent(self, number: int, action: PlannedAction, guests: Sequence[str]) -> None:
        """An operation is about to begin; written before its first command."""
        self.journal(
            "intent", action=number, verb=action.verb.value, job=action.job_id, nodes=list(action.nodes),
            yield_frac=action.yield_frac, guests=list(guests),
        )  # fmt: skip
        at = f" at yield {action.yield_frac:.2f}" if action.yield_frac else ""
        self.say(f"    {action.verb.value} job {action.job_id} on {self.where(action.nodes)}{at}")

    def outcome(
        self, number: int, action: PlannedAction, *, elapsed_s: float, waited_s: float, moved: int, error: str | None,
        phases: Mapping[str, float],
    ) -> None:  # fmt: skip
        """An operation ended."""
        self.journal(
            "outcome", action=number, verb=action.verb.value, job=action.job_id, nodes=list(action.nodes),
            ok=error is None, error=error,
            elapsed_s=round(elapsed_s, 6), waited_s=round(waited_s, 6), bytes=moved,
            **{name: round(value, 6) for name, value in phases.items()},
        )  # fmt: skip
        self.point(
            "action",
            {"job": str(action.job_id), "verb": action.verb.value},
            {"elapsed_s": elapsed_s, "waited_s": waited_s, "bytes": moved, "ok": error is None},
        )

    def rescheduling(self, live: LiveJob, record: Rescheduling) -> None:
        """A preemption or migration is complete."""
        phases = record.phases()
        self.journal(
            "rescheduling", job=live.job_id, reason=record.reason, mechanism=record.mechanism,
            moved_tasks=record.moved_tasks, **record.amounts(),
            **{name: round(value, 6) for name, value in phases.items()},
        )  # fmt: skip
        self.point(
            "rescheduling",
            {"job": str(live.job_id), "reason": record.reason, "mechanism": record.mechanism},
            {**phases, **record.amounts()},
        )

    def cap_window(self, tags: Mapping[str, str], window: CapWindow) -> None:
        """A window of constant cap is over."""
        self.cap_windows.append(window)
        self.point(
            "cap",
            tags,
            {
                "requested_cores": window.requested_cores,
                "achieved_cores": window.achieved_cores,
                "window_s": window.window_s,
            },
        )
