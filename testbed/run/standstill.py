"""The pauses of a run by the operator, in which trace time stands still, and the controller's mode meanwhile."""

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
    """The pauses of a run. Times are wall seconds of the run; `since_s` is None while trace time goes on.

    `pauses` counts the orders to pause. `spans` are the standstills that are over, in order.
    """

    hold: Hold = Hold.NONE
    pauses: int = 0
    since_s: float | None = None
    spans: list[tuple[float, float]] = field(default_factory=list)

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
        """Let trace time go on."""
        if self.hold is not Hold.RESUMING or self.since_s is None:
            raise IllegalEventError(
                "clock-started", event.t_s, None, self.hold or "running", "running",
                "expected a run that is continued after a pause",
            )  # fmt: skip
        self.spans.append((self.since_s, event.t_s))
        self.hold, self.since_s = Hold.NONE, None

    def within_s(self, begin_s: float, end_s: float) -> float:
        """Return for how long trace time stood still between two moments, the later of which may be now."""
        spans = [*self.spans, *([] if self.since_s is None else [(self.since_s, end_s)])]
        return sum(max(0.0, min(end_s, until_s) - max(begin_s, since_s)) for since_s, until_s in spans)

    def clock_s(self, t_s: float) -> float:
        """Return a moment of the run without the standstills before it: trace time is linear in that."""
        return t_s - self.within_s(0.0, t_s) if self.pauses or self.since_s is not None else t_s
