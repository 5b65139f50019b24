"""Work that is CPU time by the kernel's accounting: as much as the units of an iteration take on the measured core.

So the speed of cores drops out of how long a job takes. What is done with the time is of no account, but a part of it,
which any core can do in the time, is counted by the checksum; the rest of the time is filled with work of its kind.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from node_agent.programs.catalogue import Work

_CHUNKS_PER_S = 4000  # the filler looks at the time so often; what it does too much is done less the next time


class CpuTimeFiller:
    """Lets each iteration take its CPU time, all threads together; `filler` works on arrays of its own."""

    def __init__(self, filler: Work, ns_per_unit: float, clock_ns: Callable[[], int] = time.process_time_ns) -> None:
        self._filler = filler
        self._ns_per_unit = ns_per_unit
        self._clock_ns = clock_ns
        self._chunk = max(1, round(1e9 / _CHUNKS_PER_S / ns_per_unit))
        self._owed_ns = 0.0  # CPU time; less than 0 after an iteration that took too much

    def run(self, units: int, counted: Callable[[], None]) -> None:
        """Do what is counted, and fill the CPU time of so many units."""
        self._owed_ns += units * self._ns_per_unit
        last_ns = self._clock_ns()
        counted()
        while True:
            now_ns = self._clock_ns()
            self._owed_ns -= now_ns - last_ns
            last_ns = now_ns
            if self._owed_ns <= 0.0:
                return
            self._filler.run(self._chunk)
