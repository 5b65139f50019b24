"""Estimates the CPU need of a guest from its CPU usage under caps, with bounds.

The estimator gets one window at a time; within a window the cap does not change. Each window yields bounds:

* The guest was not throttled: its need is its usage, within the measurement error.
* The guest was throttled, and the node reports for how long: the need is at least the usage, and at most the usage
  divided by the unthrottled part of the window. An unthrottled guest runs at its own pace or faster.
* The guest was throttled for an unknown time: the need is at least the usage.

The estimator intersects the bounds of all windows. If the intersection becomes empty, the need has changed, and only
the newest window counts. The estimate is the mean usage of the unthrottled windows. Without any, the estimate is the
declared need or twice the lower bound, whichever is larger, within the bounds. Thus a throttled guest gets a higher cap
until a window shows its need; the additional cap is the cost of the search.

A quota throttles a guest that computes in bursts even if its mean usage is below its cap. Such a window counts as
throttled: a program that waits between bursts is slower under the cap, and would use more without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

NEED_WINDOW_S = 5.0  # window length of agents
ERROR_FRAC = 0.05  # relative measurement error: the speed of a core varies by about as much within seconds
ERROR_CORES = 0.01  # absolute part of the measurement error
THROTTLED_FRAC = 0.05  # a guest that is throttled for a smaller part of a window counts as unthrottled
FULL_FRAC = 0.95  # without throttling data, a guest that uses this part of its cap counts as throttled
NEWS_FRAC = 0.05  # an estimate that differs by less from the need that a policy has causes no decision
GROWTH = 2.0  # least estimate relative to the lower bound, if every window was throttled


def error_of(cores: float) -> float:
    """Return the measurement error of a CPU usage, in cores."""
    return ERROR_FRAC * cores + ERROR_CORES


@dataclass(frozen=True, slots=True)
class Need:
    """An estimated CPU need and its bounds, in cores.

    `booked_cores` is the need that a policy should use. For a measured need it includes headroom of twice the
    measurement error, so that a guest at yield 1 is unthrottled, and an increase of its need is detected. The need is
    `guessed` if every window was throttled: then only the bounds are measured.
    """

    cores: float
    least_cores: float
    most_cores: float
    booked_cores: float
    guessed: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """The mean CPU usage of a guest during a time with one cap, in cores.

    `throttled_frac` is the part of the time for which the cap throttled the guest, None if it is unknown.
    """

    cap_cores: float
    used_cores: float
    throttled_frac: float | None = None

    @property
    def was_throttled(self) -> bool:
        """Whether the guest needed more than its cap."""
        if self.throttled_frac is None:
            return self.used_cores >= FULL_FRAC * self.cap_cores
        return self.throttled_frac > THROTTLED_FRAC

    def bounds_cores(self) -> tuple[float, float]:
        """Return the bounds of the need by this window alone."""
        if not self.was_throttled:
            error = error_of(self.used_cores)
            return max(self.used_cores - error, 0.0), self.used_cores + error
        if self.throttled_frac is None or self.throttled_frac >= 1.0:
            return self.used_cores, math.inf
        pace = self.used_cores / (1.0 - self.throttled_frac)
        return self.used_cores, pace + error_of(pace)


class NeedEstimator:
    """Estimator for one guest with a declared need, which can use at most `most_cores` (its virtual CPUs)."""

    def __init__(self, declared_cores: float, most_cores: float) -> None:
        self._declared_cores, self._most_possible = declared_cores, most_cores
        self._least, self._most = 0.0, math.inf
        self._mean_cores, self._unthrottled = 0.0, 0  # unthrottled windows since the need last changed

    def observe(self, window: Window) -> None:
        """Add a window."""
        least, most = window.bounds_cores()
        if least > self._most or most < self._least:
            self._least, self._most = least, most
            self._mean_cores, self._unthrottled = 0.0, 0
        else:
            self._least, self._most = max(least, self._least), min(most, self._most)
        if not window.was_throttled:
            self._unthrottled += 1
            self._mean_cores += (window.used_cores - self._mean_cores) / self._unthrottled

    @property
    def need(self) -> Need:
        """The present estimate."""
        most = min(self._most, self._most_possible)
        least = min(self._least, most)
        headroom = 0.0
        if self._unthrottled:
            cores = self._mean_cores
            headroom = 2.0 * error_of(cores)
        else:
            cores = max(self._declared_cores, GROWTH * self._least)
        cores = min(max(cores, least), most)
        return Need(cores, least, most, min(cores + headroom, self._most_possible), guessed=not self._unthrottled)
