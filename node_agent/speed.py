"""The current speed of a core, measured by half a millisecond of work units in CPU time.

Cores are not always as fast as when work was sized for them: frequencies change, and a virtual machine shares its cores
with other tenants. A sample measures the core that the agent runs on.
"""

from __future__ import annotations

import time

from node_agent.programs.kernel import Kernel

_WARM_UP_UNITS = 4  # after a second of other work its array is in no cache
_UNITS = 20


class SpeedProbe:
    """Takes samples on demand, each in about 0.6 ms of CPU time."""

    def __init__(self) -> None:
        self._kernel = Kernel(seed=1, rank=0, workers=1)

    def units_per_s(self) -> float:
        """Return work units per second of a core's CPU time; 0 if the clock did not advance."""
        self._kernel.run(_WARM_UP_UNITS)
        begin_ns = time.thread_time_ns()
        self._kernel.run(_UNITS)
        elapsed_ns = time.thread_time_ns() - begin_ns
        return _UNITS * 1e9 / elapsed_ns if elapsed_ns > 0 else 0.0
