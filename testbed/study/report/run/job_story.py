"""The story of one job of a run as data: its events, their causes and durations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from testbed.measure.reasons import Reason
from testbed.study.report.run.job_waits import Wait

SUBMITTED = "submitted"
DECISION = "decision"
OPERATION = "operation"
RETRY = "retry"
NO_ROOM = "no-room"
MIGRATION = "migration"
RESCHEDULING = "rescheduling"
GUEST = "guest"
NODE = "node"
ENDED = "ended"
UNCHECKED = "unchecked"
ORDER = "order"
FENCE = "fence-awaited"


@dataclass(frozen=True, slots=True)
class Event:
    """One event: wall seconds `t_s` since the run began, trace seconds, a kind, and facts.

    Nodes in `facts` are names. An operation is listed at its begin; its end adds further facts.
    """

    t_s: float
    trace_s: float
    kind: str
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Span:
    """An interval in which the guests ran at one yield on these nodes; wall seconds since the run began."""

    begin_s: float
    end_s: float
    nodes: tuple[str, ...]
    yield_frac: float


@dataclass(frozen=True, slots=True)
class WaitSpan:
    """An interval in which the job waited; wall seconds since the run began. `idle`: none of its tasks ran."""

    begin_s: float
    end_s: float
    wait: Wait
    idle: bool


@dataclass(slots=True)
class Story:
    """The story of one job, from the journal.

    `state` is the last state in the journal: coming, submitted, running, paused, resumed, moving, done or failed. If
    `waits_for` is not None, the last wait continues at the end of the journal. `work_s` is the job's work in trace
    seconds on dedicated nodes, as last reported to the policy or written to jobs.csv.
    """

    job: int
    state: str = "coming"
    t_s: float = 0.0
    trace_s: float = 0.0
    reason: Reason | None = None
    events: list[Event] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    waits: list[WaitSpan] = field(default_factory=list)
    waits_for: Wait | None = None
    operation: Event | None = None
    work_s: float = 0.0
    aborted: str | None = None

    @property
    def ended(self) -> bool:
        """Whether the job is done or failed."""
        return self.state in ("done", "failed")

    @property
    def ran_s(self) -> float:
        """Wall seconds for which the job's guests ran."""
        return sum(span.end_s - span.begin_s for span in self.spans)

    def waited_s(self) -> dict[str, float]:
        """Return the wall seconds without running tasks and without an operation on the job, by kind of wait."""
        found: dict[str, float] = {}
        for span in self.waits:
            if span.idle:
                found[span.wait.kind] = found.get(span.wait.kind, 0.0) + span.end_s - span.begin_s
        return found
