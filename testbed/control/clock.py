"""The replay clock: trace seconds against the loop's monotonic wall clock."""

from __future__ import annotations

import asyncio


class ReplayClock:
    """Maps the event loop's monotonic time to trace time; `time_scale` trace seconds pass in a wall second."""

    def __init__(self, time_scale: float) -> None:
        self.time_scale = time_scale
        self._zero_wall_s = 0.0

    def start(self) -> None:
        """Let trace second 0 be now."""
        self._zero_wall_s = asyncio.get_running_loop().time()

    def wall_s(self) -> float:
        """Wall seconds since the start."""
        return asyncio.get_running_loop().time() - self._zero_wall_s

    def trace_s(self) -> float:
        """Trace seconds since the start."""
        return self.wall_s() * self.time_scale

    def until_s(self, trace_s: float) -> float:
        """Wall seconds from now until the trace second, 0 if it is past."""
        return max(0.0, trace_s / self.time_scale - self.wall_s())
