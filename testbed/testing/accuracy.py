"""Accuracy assertions: enforced if the machine had idle CPU time during the measurement, else only reported.

The error of a CPU cap is a property of the testbed only while no other load takes the CPU time. `Window` samples the
machine's counters every half second, because the mean of a long window hides a short busy phase. `Accuracy` compares
a figure with its bounds: it fails the test if the machine had idle time throughout; else it keeps a line with the
reason why the figure was not judged.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import psutil

NOT_JUDGED = "accuracy_not_judged"  # a property of test reports, because reports also come from worker processes
LEAST_IDLE_FRAC = 0.4  # of all CPU time of the machine: with less, a guest may have waited for a CPU
LEAST_COUNTED_FRAC = 0.9  # CPU time in the CPUs' counters over elapsed time: with less, the machine was stopped
MOST_STEAL_FRAC = 0.02  # of all CPU time: steal time, which the machine's own hypervisor gave to other machines
LOOK_EVERY_S = 0.5  # the counters have steps of 10 ms
MOST_LATE_S = 0.5  # delay of a sample: with more, this process waited for a CPU


class NotJudgedWarning(UserWarning):
    """A figure was outside of its bounds on a busy machine; this is no evidence about the driver."""


class Judge(Protocol):
    """Decides whether a measurement was disturbed."""

    def busy(self) -> str:
        """Return the cause of a disturbance, an empty string if there was none."""


@dataclass(frozen=True)
class Look:
    """The machine's counters at one moment, in seconds."""

    at_s: float
    counted_s: float
    """CPU time of all CPUs, divided by their number."""
    idle_s: float
    steal_s: float


def look() -> Look:
    """Return a sample of the counters."""
    found, cpus = psutil.cpu_times(), psutil.cpu_count() or 1
    counted_s = sum(found) - found.guest - found.guest_nice  # guest time is part of user time
    return Look(time.monotonic(), counted_s / cpus, (found.idle + found.iowait) / cpus, found.steal / cpus)


def disturbance(looks: Sequence[Look]) -> str:
    """Return why the machine was too busy between the first and the last sample, an empty string if it was not."""
    first, last = looks[0], looks[-1]
    total_s = last.counted_s - first.counted_s
    counted_frac = total_s / max(last.at_s - first.at_s, 1e-9)
    if counted_frac < LEAST_COUNTED_FRAC:
        return f"the machine's CPUs counted {counted_frac:.0%} of the time that passed"
    steal_frac = (last.steal_s - first.steal_s) / total_s
    if steal_frac > MOST_STEAL_FRAC:
        return f"{steal_frac:.1%} of the CPU time was stolen, more than {MOST_STEAL_FRAC:.0%}"
    for one, other in itertools.pairwise(looks):
        elapsed_s = other.at_s - one.at_s
        if elapsed_s > LOOK_EVERY_S + MOST_LATE_S:
            return f"the test itself stood still for {elapsed_s - LOOK_EVERY_S:.1f} s"
        idle_frac = (other.idle_s - one.idle_s) / max(elapsed_s, 1e-9)
        if idle_frac < LEAST_IDLE_FRAC:
            return f"{idle_frac:.0%} of the CPU time was idle for {elapsed_s:.1f} s, less than {LEAST_IDLE_FRAC:.0%}"
    return ""


class Window:
    """A measurement window from its creation to each call of `busy`, which checks whether the machine was too busy."""

    def __init__(self) -> None:
        self._looks = [look()]
        gone = threading.Event()
        weakref.finalize(self, gone.set)
        threading.Thread(target=_watch, args=(self._looks, gone), name="accuracy", daemon=True).start()

    def busy(self) -> str:
        """Return why the machine was too busy since the window began, an empty string if it was not."""
        looks, now = list(self._looks), look()
        # drop a sample that was taken just before: the counters are too coarse for so short an interval
        if len(looks) > 1 and now.at_s - looks[-1].at_s < LOOK_EVERY_S / 2:
            looks.pop()
        return disturbance([*looks, now])


def _watch(looks: list[Look], gone: threading.Event) -> None:
    while not gone.wait(LOOK_EVERY_S):
        looks.append(look())


@dataclass
class Accuracy:
    """Comparisons of one test's figures with their bounds; `not_judged` has the figures of busy windows."""

    test: str
    not_judged: list[str] = field(default_factory=list)

    def check(self, what: str, found: float, least: float, most: float, window: Judge) -> None:
        """Fail if `found` is outside of its bounds and the machine had idle time; else report it."""
        if least <= found <= most:
            return
        words = f"{what}: {found:.4g}, expected {least:.4g} to {most:.4g}"
        busy = window.busy()
        assert busy, words
        self.not_judged.append(f"{self.test}: {words}; {busy}")
