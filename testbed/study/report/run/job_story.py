"""The story of one job of a run, as data: what happened to it, why, and for how long."""

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
    """One event: wall seconds `t_s` since the run began, trace seconds, a kind, and its facts.

    Nodes in `facts` are names. An operation stands where it began, and its facts grow when it ends.
    """

    t_s: float
    trace_s: float
    kind: str
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Span:
    """From `begin_s` to `end_s`, wall seconds since the run began, the guests ran, at one yield on these nodes."""

    begin_s: float
    end_s: float
    nodes: tuple[str, ...]
    yield_frac: float


@dataclass(frozen=True, slots=True)
class WaitSpan:
    """From `begin_s` to `end_s`, wall seconds since the run began, the job waited; `idle` if nothing of it ran."""

    begin_s: float
    end_s: float
    wait: Wait
    idle: bool


@dataclass(slots=True)
class Story:
    """The data of one job in the journal.

    `state` is the last state that the journal has: coming, submitted, running, paused, resumed, moving, done or failed.
    `waits` lasts to the journal's end if `waits_for` is not None. `work_s` is what it had done, in dedicated trace
    seconds, as last reported to the policy or written to jobs.csv.
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
        """Wall seconds for which its guests ran."""
        return sum(span.end_s - span.begin_s for span in self.spans)

    def waited_s(self) -> dict[str, float]:
        """Wall seconds for which nothing of the job ran and nothing was done with it, by kind of wait."""
        found: dict[str, float] = {}
        for span in self.waits:
            if span.idle:
                found[span.wait.kind] = found.get(span.wait.kind, 0.0) + span.end_s - span.begin_s
        return found
