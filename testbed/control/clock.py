"""The replay clock: maps the event loop's monotonic wall clock to trace seconds."""

from __future__ import annotations

import asyncio


class ReplayClock:
    """Maps the event loop's monotonic time to trace time; `time_scale` trace seconds pass per wall second.

    Trace time is stopped from `stop` to `go_on`, while the operator has paused the run.
    """

    def __init__(self, time_scale: float) -> None:
        self.time_scale = time_scale
        self._zero_wall_s = 0.0
        self._stopped_s: float | None = None

    def start(self) -> None:
        """Set trace second 0 to the present moment."""
        self._zero_wall_s = asyncio.get_running_loop().time()

    def start_at(self, trace_s: float) -> None:
        """Set the clock to this trace second, and stop trace time."""
        self._stopped_s = asyncio.get_running_loop().time()
        self._zero_wall_s = self._stopped_s - trace_s / self.time_scale

    @property
    def stands(self) -> bool:
        """Whether trace time is stopped."""
        return self._stopped_s is not None

    def stop(self) -> None:
        """Stop trace time; a stopped clock keeps its time."""
        if self._stopped_s is None:
            self._stopped_s = asyncio.get_running_loop().time()

    def go_on(self) -> None:
        """Continue trace time."""
        if self._stopped_s is not None:
            self._zero_wall_s += asyncio.get_running_loop().time() - self._stopped_s
            self._stopped_s = None

    def wall_s(self) -> float:
        """Wall seconds since the start in which trace time advanced."""
        now_s = asyncio.get_running_loop().time() if self._stopped_s is None else self._stopped_s
        return now_s - self._zero_wall_s

    def trace_s(self) -> float:
        """Trace seconds since the start."""
        return self.wall_s() * self.time_scale

    def until_s(self, trace_s: float) -> float:
        """Wall seconds from now until the trace second if time continues, 0 if it is past."""
        return max(0.0, trace_s / self.time_scale - self.wall_s())
