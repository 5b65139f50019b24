"""Work defined as CPU time by the kernel's accounting: as much as an iteration's units take on the measured core.

So the run time of a job does not depend on the speed of its cores. The checksum counts only a part of the units, which
any core can do in the time; the rest of the time is filled with work of the same kind.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from node_agent.programs.catalogue import Work

_CHUNKS_PER_S = 4000  # clock checks per second of filling; an overrun is subtracted from the next iteration


class CpuTimeFiller:
    """Extends each iteration to its CPU time, the sum over all threads; `filler` works on arrays of its own."""

    def __init__(self, filler: Work, ns_per_unit: float, clock_ns: Callable[[], int] = time.process_time_ns) -> None:
        self._filler = filler
        self._ns_per_unit = ns_per_unit
        self._clock_ns = clock_ns
        self._chunk = max(1, round(1e9 / _CHUNKS_PER_S / ns_per_unit))
        self._owed_ns = 0.0  # CPU time; less than 0 after an iteration that took too much

    def run(self, units: int, counted: Callable[[], None]) -> None:
        """Do the counted work, and fill the CPU time of `units` units."""
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
