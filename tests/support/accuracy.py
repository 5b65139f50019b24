"""Checks of accuracy: judged on a machine that had idle CPU time meanwhile, only reported on a busy one.

How near a CPU cap comes to what was asked says something about the testbed only while nothing else takes the CPU time.
`Window` reads the machine's counters around a measurement. The fixture `accuracy` compares: it fails the test if the
machine was idle enough, and adds a line to the summary at the end of the session if it was not.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

import psutil

LEAST_IDLE_FRAC = 0.4  # of all CPU time of the machine: with less, a guest may have waited for a CPU
LEAST_COUNTED_FRAC = 0.9  # of the time that passed, by the CPUs' own counters: with less, the machine stood still
MOST_STEAL_FRAC = 0.02  # of all CPU time: what the machine's own hypervisor gave to others


class Judge(Protocol):
    """Whatever knows whether a measurement was disturbed."""

    def busy(self) -> str:
        """Return what disturbed it, an empty string if nothing did."""
        ...


class Window:
    """The time from its creation to each `busy`: whether the machine was too busy to judge accuracy."""

    def __init__(self) -> None:
        self._begin = psutil.cpu_times()
        self._begin_s = time.monotonic()

    def busy(self) -> str:
        """Return why the machine was too busy since the window began, an empty string if it was not."""
        now = psutil.cpu_times()
        spent = {name: getattr(now, name) - getattr(self._begin, name) for name in ("idle", "iowait", "steal")}
        # guest time is part of user time
        total = (
            sum(now)
            - sum(self._begin)
            - sum(getattr(now, name) - getattr(self._begin, name) for name in ("guest", "guest_nice"))
        )
        counted_frac = total / (psutil.cpu_count() or 1) / max(time.monotonic() - self._begin_s, 1e-9)
        if counted_frac < LEAST_COUNTED_FRAC:
            return f"the machine's CPUs counted {counted_frac:.0%} of the time that passed"
        idle_frac, steal_frac = (spent["idle"] + spent["iowait"]) / total, spent["steal"] / total
        if idle_frac < LEAST_IDLE_FRAC:
            return f"{idle_frac:.0%} of the CPU time was idle, less than {LEAST_IDLE_FRAC:.0%}"
        if steal_frac > MOST_STEAL_FRAC:
            return f"{steal_frac:.1%} of the CPU time was stolen, more than {MOST_STEAL_FRAC:.0%}"
        return ""


@dataclass
class Accuracy:
    """The comparisons of one test."""

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
