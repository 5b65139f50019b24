"""Analysis of samples of a guest's CPU time: errors of a cap over windows, and the response time of a new cap.

A cap holds over periods of 100 ms, in which a guest first runs and is then stopped. CPU time over less than a period
therefore gives no information about the cap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

RESPONSE_WINDOW_S = 0.2  # two periods of a cap
NEAR_FRAC = 0.1
NEAR_CORES = 0.02  # least tolerance: a kernel that counts CPU time in ticks of 4 ms resolves no less over the window
_STAYS_FRAC = 0.75  # fraction of all later windows: on a busy machine single windows deviate long after the change
_SMOOTHED = 3  # number of windows in a running median, so that one bad sample changes nothing


@dataclass(frozen=True, slots=True)
class WindowUse:
    """CPU use over all windows of one length: median in cores, and maximum and 95th percentile of absolute errors."""

    windows: int
    used_cores: float
    worst_error_cores: float
    p95_error_cores: float


def window_rates(t_s: ArrayLike, cpu_s: ArrayLike, window_s: float) -> tuple[Floats, Floats]:
    """Return (begins, cores used) of sliding windows, one from each sample with another about `window_s` later.

    Samples (n,) increase. Rates are over the elapsed time. A window is left out if no sample is within half a window of
    its end, because then the sampler itself was delayed.
    """
    t, cpu = np.asarray(t_s, dtype=np.float64), np.asarray(cpu_s, dtype=np.float64)
    if t.shape != cpu.shape or t.ndim != 1:
        raise ValueError(f"times {t.shape} and CPU times {cpu.shape}: expected two lists of one length")
    if t.size < 2:
        return np.empty(0), np.empty(0)
    step_s = float(np.median(np.diff(t)))
    end = np.searchsorted(t, t + window_s - step_s / 2)
    begin = np.flatnonzero(end < t.size)
    end = end[begin]
    lasted_s = t[end] - t[begin]
    good = (lasted_s > 0.0) & (np.abs(lasted_s - window_s) <= window_s / 2)
    begin, end = begin[good], end[good]
    return t[begin], (cpu[end] - cpu[begin]) / lasted_s[good]


def window_use(t_s: ArrayLike, cpu_s: ArrayLike, window_s: float, requested_cores: float) -> WindowUse | None:
    """Compare the CPU use over sliding windows with the request; None if the samples have no window of that length."""
    _begins_s, used_cores = window_rates(t_s, cpu_s, window_s)
    if not used_cores.size:
        return None
    errors = np.abs(used_cores - requested_cores)
    return WindowUse(
        int(used_cores.size), float(np.median(used_cores)), float(errors.max()), float(np.quantile(errors, 0.95))
    )


def response_s(
    t_s: Sequence[float], cpu_s: Sequence[float], begin_s: float, cap_cores: float, *, until_s: float = float("inf")
) -> float | None:
    """Return the seconds from the command's begin until the CPU use reached the new cap and stayed there; None: never.

    The rate at a moment is the CPU use over the next `RESPONSE_WINDOW_S` seconds, smoothed by a running median of three
    rates. A rate is near the cap if it is within `NEAR_FRAC` of `cap_cores`, or within `NEAR_CORES`. The response is
    the first moment at which the rate is near the cap, also at the next moment, and at 3 of 4 of all later moments
    (whose windows end by `until_s`). Times are in seconds by the clock of `t_s`.
    """
    begins_s, cores = window_rates(t_s, cpu_s, RESPONSE_WINDOW_S)
    after = (begins_s >= begin_s) & (begins_s + RESPONSE_WINDOW_S <= until_s)
    begins_s, cores = begins_s[after], cores[after]
    if cores.size < 2 * _SMOOTHED:
        return None
    edge = _SMOOTHED // 2
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(np.pad(cores, edge, mode="edge"), _SMOOTHED), axis=1)
    near = np.abs(smooth - cap_cores) <= max(NEAR_FRAC * cap_cores, NEAR_CORES)
    left = np.arange(near.size, 0, -1)
    stays = np.cumsum(near[::-1])[::-1] / left >= _STAYS_FRAC
    followed = np.append(near[1:], False)  # the last moment alone proves nothing
    settled = np.flatnonzero(near & followed & stays & (left >= 2 * _SMOOTHED))
    return float(begins_s[settled[0]] - begin_s) if settled.size else None
