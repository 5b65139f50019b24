"""Iterations of guests between two of their samples."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.bus.telemetry import Supersteps
from testbed.measure.points import Value

_NOTHING = Supersteps(steps=0, longest_s=0.0, compute_s=0.0, comm_s=0.0)


@dataclass(slots=True)
class _Last:
    taken_ns: int
    supersteps: Supersteps


class StepMeter:
    """Keeps what each guest has told last, and returns what it did since: the fields of a `superstep` point."""

    def __init__(self) -> None:
        self._last: dict[str, _Last] = {}

    def advance(self, guest: str, taken_ns: int, found: Supersteps) -> dict[str, Value] | None:
        """Return steps, mean, longest, computing and communication since the last point; None if there is no step.

        A guest may go back, to an image of earlier: then what it does twice is counted from its next sample on. What
        is older than what is known (from the node that it has left, say) is part of a point already.
        """
        last = self._last.get(guest)
        if last is None:
            last = _Last(-1, _NOTHING)
        if taken_ns <= last.taken_ns:
            return None
        before = last.supersteps
        steps = found.steps - before.steps
        if steps == 0:
            return None  # its longest iteration is one of those to come
        self._last[guest] = _Last(taken_ns, found)
        if steps < 0:
            return None
        compute_s = max(0.0, found.compute_s - before.compute_s)
        comm_s = max(0.0, found.comm_s - before.comm_s)
        mean_s = (compute_s + comm_s) / steps
        return {
            "steps": steps,
            "mean_s": mean_s,
            "max_s": max(mean_s, found.longest_s),
            "compute_s": compute_s,
            "comm_s": comm_s,
        }
