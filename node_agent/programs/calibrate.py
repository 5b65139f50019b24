"""Calibration: the work units that one core does in a second of its CPU time."""

from __future__ import annotations

import statistics
import time

from node_agent.programs.kernel import Kernel

_WINDOWS = 9
_WARM_UP_NS = 50_000_000
_UNITS = 100  # between two reads of the clock: a few milliseconds


def units_per_core_s(cpu_s: float) -> float:
    """Return the median rate of short windows that take `cpu_s` seconds of CPU time together."""
    kernel = Kernel(seed=1, rank=0, workers=1)
    _rate(kernel, _WARM_UP_NS)
    window_ns = max(20_000_000, round(cpu_s * 1e9 / _WINDOWS))
    return statistics.median(_rate(kernel, window_ns) for _ in range(_WINDOWS))


def _rate(kernel: Kernel, window_ns: int) -> float:
    begin_ns = now_ns = time.thread_time_ns()
    units = 0
    while now_ns - begin_ns < window_ns:
        kernel.run(_UNITS)
        units += _UNITS
        now_ns = time.thread_time_ns()
    return units * 1e9 / (now_ns - begin_ns)
