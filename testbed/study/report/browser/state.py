"""The state of one run for the page, from its files; it does not depend on how the files are cut into pieces."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from testbed.run import events
from testbed.run.history import ONLINE, History
from testbed.run.journal import BadEntryError, decode
from testbed.run.phases import IllegalEventError
from testbed.scheduling.policies.xge_slots import Partitions, partitions_of
from testbed.study.report.browser.jobs import Board, board_of
from testbed.study.report.browser.log import ERROR, describe
from testbed.study.report.browser.telemetry import NodeUse, Telemetry
from testbed.study.report.run.schedule import KINDS, Span
from testbed.study.report.run.timeline import Timeline

KEPT_SPANS: Final = 40_000
KEPT_LINES: Final = 200
KEPT_RESCHEDULINGS: Final = 12
SHOWN_ACTIONS: Final = 60
SHOWN_JOBS: Final = 60
PHASES: Final = ("save_s", "wait_s", "transfer_s", "restore_s", "downtime_s", "first_progress_s")
_RUNS: Final = frozenset({"", "cap", "migrate"})  # operations during which the guest runs
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
    """The state of one run, from its manifest, journal lines and points; `changes.Page` reads its parts.

    Times are wall seconds since the replay began, negative before it. Memory is bounded by the numbers of nodes and
    jobs and by `KEPT_SPANS` and similar limits, not by the length of the run.
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
        self.zero_t_s: float | None = None  # `t_s` of trace second 0 in the journal
        self.last_t_s = 0.0
        self.history = History()
        self._board: Board | None = None  # cache for the present history
        self._partitions: Partitions | None = None  # under XGE
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
        self.changed_names: set[str] = set()

    def feed_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Process manifest.json: names and sizes of nodes, clocks. An invalid manifest is reported and left out."""
        try:
            nodes = manifest["nodes"]
            cpus = [float(facts["cpus"]) for facts in nodes.values()]
            memory_mib = [int(facts["memory_mib"]) for facts in nodes.values()]
            clocks = manifest["clocks"]
            time_scale, anchor_unix_ns = float(clocks["time_scale"]), int(clocks["anchor_unix_ns"])
        except _OF_ANOTHER_FORM:
            self._say(ERROR, "manifest.json is not the manifest of a run: nodes are shown without names")
            return
        self.names, self.cpus, self.memory_mib = list(nodes), cpus, memory_mib
        self.time_scale, self.anchor_unix_ns = time_scale, anchor_unix_ns
        self.timeline.time_scale, self.timeline.node_names = time_scale, tuple(nodes)
        self.history.name_nodes(self.names)
        self.changed_names.update(self.names)
        self._partitions = partitions_of(self.policy, len(self.names))

    def feed_line(self, line: bytes) -> None:
        """Process one line of the journal, without its line break; an unreadable line is reported and left out."""
        if not line.strip():
            return
        try:
            self._feed(decode(line))
        except BadEntryError as error:
            self._say(ERROR, f"a line of the journal cannot be read: {error}")
        except IllegalEventError as error:
            self._say(ERROR, f"a line of the journal contradicts earlier lines: {error}")

    def feed_points(self, lines: Iterable[bytes]) -> None:
        """Process lines of points."""
        for line in lines:
            name = self.telemetry.feed(line)
            if name is not None:
                self.changed_names.add(name)

    @property
    def now_s(self) -> float:
        """The time of the latest entry of the journal or sample of a node."""
        now_t_s = self.last_t_s
        if self.anchor_unix_ns is not None and self.state == "running":
            last_ns = max((node.time_ns for node in self.telemetry.by_node.values()), default=0)
            now_t_s = max(now_t_s, (last_ns - self.anchor_unix_ns) / 1e9)
        return self.since_zero_s(now_t_s)

    def since_zero_s(self, t_s: float) -> float:
        """Return wall seconds since the replay began, without earlier standstills."""
        return self.history.standstill.clock_s(t_s) - (self.zero_t_s or 0.0)

    @property
    def stood_still_s(self) -> float:
        """Total wall seconds of completed standstills of trace time: pauses and times without a controller."""
        return sum(end_s - begin_s for begin_s, end_s in self.history.standstill.spans)

    @property
    def board(self) -> Board:
        """The present board of jobs."""
        if self._board is None:
            self._board = board_of(self.history)
        return self._board

    def online(self, node: int) -> bool:
        """Return whether a node is online; True for an unknown node."""
        return node >= len(self.history.nodes) or self.history.nodes[node].standing == ONLINE

    def drained(self, node: int) -> bool:
        """Return whether the operator has drained a node."""
        return node < len(self.history.nodes) and self.history.nodes[node].drained

    def slot(self, node: int) -> str:
        """Return the active slot of a node under XGE, empty under other policies."""
        if self._partitions is None:
            return ""
        guests = self.board.guests.get(node, ())
        tasks = [(self.history.jobs[guest.job].tasks > 1, guest.verb in _RUNS) for guest in guests]
        return self._partitions.slot(node, tasks)

    def use(self, node: int) -> NodeUse | None:
        """Return the latest sample of a node, None if there is none."""
        return self.telemetry.by_node.get(self.names[node]) if node < len(self.names) else None

    def eta_s(self) -> float | None:
        """Return the estimated wall seconds to the end, at the mean rate so far; None without an estimate."""
        if self.state != "running" or self.zero_t_s is None:
            return None
        return self.board.eta_s(self.since_zero_s(self.last_t_s))

    def guests(self, node: int) -> list[list[object]]:
        """Return rows of job, task, requested and used cores (None if unknown), and verb of the operation; by job.

        A guest that competes by shares has its share instead of the requested cores.
        """
        use = self.use(node)
        cpus = self.cpus[node] if node < len(self.cpus) else 1.0
        rows: list[list[object]] = []
        for guest in self.board.guests.get(node, ()):
            sample = None if use is None else use.guests.get((guest.job, guest.task))
            used = None if sample is None or sample.used_cores is None else round(sample.used_cores, 3)
            requested = round(guest.yield_frac * guest.cpu_need_frac * cpus, 4)
            if sample is not None and sample.share_cores is not None:
                requested = round(sample.share_cores, 4)
            rows.append([guest.job, guest.task, requested, used, guest.verb])
        return rows

    def banks(self, node: int) -> list[list[float]]:
        """Return rows of job and cores in its bank, for the banks on a node; by job."""
        use = self.use(node)
        here = {(guest.job, guest.task) for guest in self.board.guests.get(node, ())}
        samples = {} if use is None else use.guests
        return [
            [job, round(sample.bank_cores, 4)]
            for (job, task), sample in sorted(samples.items())
            if sample.bank_cores is not None and (job, task) in here
        ]

    def held_mib(self, node: int) -> float:
        """Return the MiB that guests hold on a node by their requirements."""
        if node >= len(self.memory_mib):
            return 0.0
        held_frac = math.fsum(guest.mem_req_frac for guest in self.board.guests.get(node, ()))
        return round(held_frac * self.memory_mib[node], 1)

    def _feed(self, event: events.Known) -> None:
        self.history.apply(event)
        self._board = None
        self.last_t_s = max(self.last_t_s, event.t_s)
        self._take(event)
        if isinstance(event, events.Penalty):
            self.history.jobs[event.job].forget_accounts()
        self.timeline.take(event, self.history)
        for span in self.timeline.closed:
            self.closed_count += 1
            self.closed.append((self.closed_count, span_row(span)))
        self.timeline.closed.clear()
        told = describe(event, self.names)
        if told is not None:
            self._say(*told)

    def _take(self, event: events.Known) -> None:
        match event:
            case events.Begin():
                self.scenario, self.policy = event.scenario, event.policy
                self._partitions = partitions_of(self.policy, len(self.names))
            case events.Replay():
                self.state = "running"
                self.zero_t_s = event.t_s - event.trace_s / self.time_scale
            case events.Teardown():
                self.state = "finished"
            case events.Aborted():
                self.state, self.reason = "aborted", event.reason
            case events.Resumed():
                self.state = "recovering"
            case events.Order() | events.ClockStarted() | events.Recovered():
                self.state = self.history.standstill.hold or "running"
                self.changed_names.update([event.node] if isinstance(event, events.Order) and event.node else [])
            case events.Node():
                self.changed_names.add(event.node)
            case events.Rescheduling():
                self._rescheduling(event)

    def _say(self, level: str, text: str) -> None:
        self.log_count += 1
        self.log.append((self.log_count, round(self.since_zero_s(self.last_t_s), 3), level, text))

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
