"""The times in which trace time stands still: pauses by the operator, and times without a controller."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from testbed.run import events
from testbed.run.phases import IllegalEventError


class Hold(StrEnum):
    """The restriction of a run by the operator's orders; decisions are taken while it is `NONE`."""

    NONE = ""
    PAUSED = "paused"
    RESUMING = "resuming"
    STOPPING = "stopping"


_BEFORE = {
    "pause": (Hold.NONE, Hold.RESUMING),
    "continue": (Hold.PAUSED,),
    "stop": (Hold.NONE, Hold.PAUSED, Hold.RESUMING),
}
_AFTER = {"pause": Hold.PAUSED, "continue": Hold.RESUMING, "stop": Hold.STOPPING}


@dataclass(slots=True)
class Standstill:
    """The standstills of a run. Times are wall seconds of the run; `since_s` is None without a pause.

    `pauses` counts the orders to pause. `spans` has the standstills that are over, in order. `blind` has the times
    without a controller, and `blind_since_s` is the begin of the present one, until the run has recovered. A time
    without a controller that lies in a pause is part of the pause, and not in `spans`.
    """

    hold: Hold = Hold.NONE
    pauses: int = 0
    since_s: float | None = None
    spans: list[tuple[float, float]] = field(default_factory=list)
    blind: list[tuple[float, float]] = field(default_factory=list)
    blind_since_s: float | None = None

    @property
    def blind_s(self) -> float:
        """Sum of the times without a controller that are over."""
        return sum(until_s - since_s for since_s, until_s in self.blind)

    def lose(self, event: events.Resumed) -> None:
        """Record that the controller was lost, maybe again before the run had recovered."""
        if self.blind_since_s is None:
            self.blind_since_s = event.since_s

    def recover(self, event: events.Recovered) -> tuple[float, float]:
        """Continue trace time, unless the operator has paused the run; return the time without a controller."""
        if self.blind_since_s is None:
            raise IllegalEventError(
                "recovered", event.t_s, None, "running", "recovered", "expected a run that was resumed"
            )
        span = self.blind_since_s, event.t_s
        self.blind.append(span)
        self.blind_since_s = None
        if self.since_s is None:
            self.spans.append(span)
        return span

    def order(self, event: events.Order) -> None:
        """Apply an order to pause, continue or stop; raises `IllegalEventError` for one that changes nothing."""
        before = _BEFORE.get(event.order, ())
        if self.hold not in before:
            reason = f"expected a run that is {' or '.join(hold or 'running' for hold in before)}"
            raise IllegalEventError(
                f"order {event.order}", event.t_s, None, self.hold or "running", event.order,
                reason if before else f"expected one of {', '.join(_BEFORE)}, drain and return",
            )  # fmt: skip
        self.hold = _AFTER[event.order]
        self.pauses += event.order == "pause"
        if self.since_s is None:
            self.since_s = event.t_s

    def start(self, event: events.ClockStarted) -> None:
        """Continue trace time after a pause; raises `IllegalEventError` if no pause is about to end."""
        if self.hold is not Hold.RESUMING or self.since_s is None:
            raise IllegalEventError(
                "clock-started", event.t_s, None, self.hold or "running", "running",
                "expected a run that is continued after a pause",
            )  # fmt: skip
        self.spans.append((self.since_s, event.t_s))
        self.hold, self.since_s = Hold.NONE, None

    def within_s(self, begin_s: float, end_s: float) -> float:
        """Return how long trace time stood still between two moments; the later moment may be now."""
        since_s = self.blind_since_s if self.since_s is None else self.since_s
        spans = [*self.spans, *([] if since_s is None else [(since_s, end_s)])]
        return sum(max(0.0, min(end_s, until_s) - max(begin_s, since_s)) for since_s, until_s in spans)

    def paused_s(self, now_s: float) -> float:
        """Return the time of all pauses by the operator until now."""
        pauses = [span for span in self.spans if span not in self.blind]
        pauses += [] if self.since_s is None else [(self.since_s, now_s)]
        return sum(until_s - since_s for since_s, until_s in pauses)

    def clock_s(self, t_s: float) -> float:
        """Return a moment of the run minus all standstills before it: trace time is linear in this value."""
        return t_s - self.within_s(0.0, t_s)
