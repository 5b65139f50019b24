"""How fast a core is right now: half a millisecond of work units, by CPU time.

A machine's cores are not always as fast as when work was sized by them: frequencies change, and a virtual machine
shares its cores with strangers whom it cannot see. A sample tells of the core that the agent is on.
"""

from __future__ import annotations

import time

from node_agent.programs.kernel import Kernel

_WARM_UP_UNITS = 4  # after a second of other work its array is in no cache
_UNITS = 20


class SpeedProbe:
    """Takes a sample when it is asked to; about 0.6 ms of CPU time."""

    def __init__(self) -> None:
        self._kernel = Kernel(seed=1, rank=0, workers=1)

    def units_per_s(self) -> float:
        """Return work units in a second of a core's CPU time; 0 if the clock did not move."""
        self._kernel.run(_WARM_UP_UNITS)
        begin_ns = time.thread_time_ns()
        self._kernel.run(_UNITS)
        elapsed_ns = time.thread_time_ns() - begin_ns
        return _UNITS * 1e9 / elapsed_ns if elapsed_ns > 0 else 0.0
