"""A guest's reports of its work: units, iterations, and for whose messages its rank has waited."""

from __future__ import annotations

import msgspec

from node_agent.guests.pace import supersteps_of
from node_agent.guests.wire import Frame, WireError
from testbed.bus.limits import MOST_AMOUNT
from testbed.bus.telemetry import MOST_WAITS, Supersteps
from testbed.errors import shown

_SHOWN_CHARS = 80


class Told:
    """The last report of a guest whose job has so many `ranks`; `mono_ns` is this machine's time of the report."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self.units = 0
        self.mono_ns = 0
        self.steps: Supersteps | None = None
        self.waits_s: tuple[float, ...] = ()

    def take(self, frame: Frame, now_ns: int) -> None:
        """Take a beat, a progress or the end of a guest's work; raises `WireError` for impossible values."""
        waits_s = waits_in(frame, self._ranks, self.waits_s)
        steps = supersteps_of(_steps_in(frame), self.steps)
        self.units, self.mono_ns, self.steps, self.waits_s = frame.count("units"), now_ns, steps, waits_s

    def sampled(self) -> Supersteps | None:
        """Return the iterations for a sample, and reset the longest one."""
        steps = self.steps
        if steps is not None:
            self.steps = msgspec.structs.replace(steps, longest_s=0.0)
        return steps


def waits_in(frame: Frame, ranks: int, known_s: tuple[float, ...]) -> tuple[float, ...]:
    """Return the seconds that a rank has waited for each of the `ranks` of its job, `known_s` if the frame has none.

    Such times never fall. Raises `WireError` for a list of another length, and for other values.
    """
    if "waits_s" not in frame.fields:
        return known_s
    text = frame.text("waits_s")
    words = text.split(",", MOST_WAITS)
    if ranks < 2 or len(words) != ranks:
        raise WireError(f"{frame.kind}: waits_s has {len(words)} values: expected one for each of {ranks} ranks")
    found_s = tuple(map(_seconds, words))
    least_s = known_s or (0.0,) * ranks
    for rank, (each_s, before_s) in enumerate(zip(found_s, least_s, strict=True)):
        if not before_s <= each_s <= MOST_AMOUNT:  # refuses nan, too
            raise WireError(
                f"{frame.kind}: waits_s of rank {rank} = {shown(words[rank], _SHOWN_CHARS)}: "
                f"expected seconds from {before_s:g} up"
            )
    return found_s


def _seconds(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return float("nan")


def _steps_in(frame: Frame) -> dict[str, int | float]:
    """Return a frame's fields about iterations, empty without any; raises `WireError`."""
    if "steps" not in frame.fields:
        return {}
    return {"steps": frame.count("steps"), **{key: frame.number(key) for key in ("longest_s", "compute_s", "comm_s")}}
