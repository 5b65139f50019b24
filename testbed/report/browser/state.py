"""All that the page shows of one run, from the bytes of its files: the same however they were cut into pieces."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from testbed.report.browser.jobs import JobBoard
from testbed.report.browser.log import ERROR, describe
from testbed.report.browser.telemetry import NodeUse, Telemetry
from testbed.report.browser.work import WorkMeter
from testbed.report.timeline import KINDS, Span, Timeline
from testbed.run import events
from testbed.run.journal import BadEntryError, decode

KEPT_SPANS: Final = 40_000
KEPT_LINES: Final = 200
KEPT_RESCHEDULINGS: Final = 12
SHOWN_ACTIONS: Final = 60
SHOWN_JOBS: Final = 60
PHASES: Final = ("save_s", "wait_s", "transfer_s", "restore_s", "downtime_s", "first_progress_s")
_KIND_INDEX: Final = {kind: index for index, kind in enumerate(KINDS)}
_OF_ANOTHER_FORM: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError)


def span_row(span: Span) -> list[object]:
    """Return job, task, node, begin and end in wall seconds (null while it lasts), index of the kind, yield."""
    end_s = None if span.end_s is None else round(span.end_s, 3)
    return [
        span.job, span.task, span.node, round(span.begin_s, 3), end_s, _KIND_INDEX[span.kind],
        round(span.yield_frac, 3),
    ]  # fmt: skip


class RunState:
    """Takes the manifest, journal lines and points of one run; its parts are read by `changes.Page`.

    Times are wall seconds since the replay began, negative before. Memory is bounded by the number of nodes, of jobs,
    and by `KEPT_SPANS` and the like, not by the length of the run.
    """

    def __init__(self, run: str) -> None:
        self.run = run
        self.state = "preparing"
        self.reason = ""
        self.scenario = self.policy = ""
        self.names: list[str] = []
        self.cpus: list[float] = []
        self.memory_mib: list[int] = []
        self.time_scale = 1.0
        self.anchor_unix_ns: int | None = None
        self.zero_t_s: float | None = None  # the journal's second at which trace second 0 is
        self.last_t_s = 0.0
        self.board = JobBoard()
        self.work = WorkMeter()
        self.telemetry = Telemetry()
        self.timeline = Timeline()
        self.closed: deque[tuple[int, list[object]]] = deque(maxlen=KEPT_SPANS)
        self.closed_count = 0
        self.log: deque[tuple[int, float, str, str]] = deque(maxlen=KEPT_LINES)
        self.log_count = 0
        self.reschedulings: deque[dict[str, object]] = deque(maxlen=KEPT_RESCHEDULINGS)
        self.penalties: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self.penalty_s = 0.0
        self.reasons: dict[str, int] = {}
        self.offline: set[int] = set()
        self.changed_names: set[str] = set()

    def feed_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Take manifest.json: names and sizes of nodes, clocks. One of another form is left out."""
        try:
            nodes = manifest["nodes"]
            cpus = [float(facts["cpus"]) for facts in nodes.values()]
            memory_mib = [int(facts["memory_mib"]) for facts in nodes.values()]
            clocks = manifest["clocks"]
            time_scale, anchor_unix_ns = float(clocks["time_scale"]), int(clocks["anchor_unix_ns"])
        except _OF_ANOTHER_FORM:
            self._say(ERROR, "manifest.json is not one of a run: nodes are shown without names")
            return
        self.names, self.cpus, self.memory_mib = list(nodes), cpus, memory_mib
        self.time_scale, self.anchor_unix_ns = time_scale, anchor_unix_ns
        self.timeline.time_scale, self.timeline.node_names = time_scale, tuple(nodes)
        self.board.changed_nodes.update(range(len(nodes)))

    def feed_line(self, line: bytes) -> None:
        """Take one line of the journal, without its break; what cannot be read is said, and left out."""
        if not line.strip():
            return
        try:
            self._feed(decode(line))
        except (BadEntryError, LookupError, ValueError) as error:  # or an event that contradicts itself
            self._say(ERROR, f"a line of the journal cannot be read: {error}")

    def feed_points(self, lines: Iterable[bytes]) -> None:
        """Take points."""
        for line in lines:
            name = self.telemetry.feed(line)
            if name is not None:
                self.changed_names.add(name)

    @property
    def now_s(self) -> float:
        """The time of the last news, of journal or nodes."""
        now_t_s = self.last_t_s
        if self.anchor_unix_ns is not None and self.state == "running":
            last_ns = max((node.time_ns for node in self.telemetry.by_node.values()), default=0)
            now_t_s = max(now_t_s, (last_ns - self.anchor_unix_ns) / 1e9)
        return now_t_s - (self.zero_t_s or 0.0)

    def use(self, node: int) -> NodeUse | None:
        """What a node reported last."""
        return self.telemetry.by_node.get(self.names[node]) if node < len(self.names) else None

    def eta_s(self) -> float | None:
        """Wall seconds to the end if work goes on at its mean rate so far; None when nothing can be said."""
        if self.state != "running" or self.zero_t_s is None:
            return None
        return self.work.eta_s(self.last_t_s - self.zero_t_s)

    def guests(self, node: int) -> list[list[object]]:
        """Job, task, requested and used cores (null if not known), verb of the operation under way; by job."""
        use = self.use(node)
        cpus = self.cpus[node] if node < len(self.cpus) else 1.0
        rows: list[list[object]] = []
        for job in sorted(self.board.on_node.get(node, ())):
            live = self.board.active[job]
            for task in live.tasks_on(node):
                sample = None if use is None else use.guests.get((job, task))
                used = None if sample is None or sample.used_cores is None else round(sample.used_cores, 3)
                rows.append([job, task, round(live.yield_frac * live.cpu_need_frac * cpus, 4), used, live.verb])
        return rows

    def held_mib(self, node: int) -> float:
        """Memory that guests hold on a node by their requirements."""
        if node >= len(self.memory_mib):
            return 0.0
        jobs = (self.board.active[job] for job in self.board.on_node.get(node, ()))
        held_frac = math.fsum(live.mem_req_frac * len(live.tasks_on(node)) for live in jobs)
        return round(held_frac * self.memory_mib[node], 1)

    def _feed(self, event: events.Known) -> None:
        self.last_t_s = max(self.last_t_s, event.t_s)
        match event:
            case events.Begin():
                self.scenario, self.policy = event.scenario, event.policy
            case events.Replay():
                self.state = "running"
                self.zero_t_s = event.t_s - event.trace_s / self.time_scale
            case events.Teardown():
                self.state = "finished"
            case events.Aborted():
                self.state, self.reason = "aborted", event.reason
            case events.Node():
                self._node(event.node, online=event.online)
            case events.Rescheduling():
                self._rescheduling(event)
        self.board.feed(event)
        self.work.feed(event)
        self.timeline.feed(event)
        for span in self.timeline.closed:
            self.closed_count += 1
            self.closed.append((self.closed_count, span_row(span)))
        self.timeline.closed.clear()
        told = describe(event, self.names)
        if told is not None:
            self._say(*told)

    def _say(self, level: str, text: str) -> None:
        self.log_count += 1
        self.log.append((self.log_count, round(self.last_t_s - (self.zero_t_s or 0.0), 3), level, text))

    def _node(self, name: str, *, online: bool) -> None:
        if name in self.names:
            (self.offline.discard if online else self.offline.add)(self.names.index(name))
            self.changed_names.add(name)

    def _rescheduling(self, event: events.Rescheduling) -> None:
        phases = {phase: getattr(event, phase) for phase in PHASES}
        for phase, length_s in phases.items():
            self.penalties[phase] += length_s
        self.penalty_s += event.penalty_s
        self.reasons[event.reason] = self.reasons.get(event.reason, 0) + 1
        self.reschedulings.append(
            {
                "job": event.job,
                "reason": event.reason,
                "mechanism": event.mechanism,
                "penalty_s": event.penalty_s,
                "phases": list(phases.values()),
            }
        )
