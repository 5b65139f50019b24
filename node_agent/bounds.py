"""Limits on an agent's own memory and log size, whatever commands it receives.

Memory is the resident set of this process, without its guests and without the page cache of images. An agent above its
limit drops dispensable data and refuses new work. It reports this by an event `limit`, as it does when its log file is
full.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import time
from collections.abc import Callable

import psutil

from node_agent.drivers.protocol import DriverEvent
from node_agent.log_file import MOST_BYTES, turns
from testbed.bus.messages import ITSELF, Adopt, AnyAction, Calibrate, FetchImage, Native, Start, Watch

_LEFT_FRAC = 0.9  # of the bound: below that the agent takes work again
_RELIEVE_EVERY_S = 10.0
_MIB = 1 << 20
_log = logging.getLogger(__name__)

_NEW_WORK = (Start, Adopt, FetchImage, Watch, Native, Calibrate)


def rss_mib() -> float:
    """Return the resident memory of this process."""
    return float(psutil.Process().memory_info().rss) / _MIB


class Bounds:
    """Checks this agent's memory and log; `most_mib` of 0 is no bound.

    `relieve` drops data that the agent can do without. `report` takes the events.
    """

    def __init__(
        self, most_mib: int, report: Callable[[DriverEvent], None], read_mib: Callable[[], float] = rss_mib
    ) -> None:
        self.relieve: Callable[[], None] = lambda: None
        self._most_mib = most_mib
        self._report = report
        self._read_mib = read_mib
        self._beyond_mib = 0.0  # its memory, while it exceeds the bound
        self._relieved_s = float("-inf")
        self._turns = turns()

    def look(self, now_s: float) -> None:
        """Check both and act on the result; called once per sample, `now_s` by the loop's clock."""
        if (full := turns()) != self._turns:
            self._turns = full
            self._say("log", "reached", MOST_BYTES / _MIB, MOST_BYTES / _MIB)
        if not self._most_mib:
            return
        found_mib = self._read_mib()
        if found_mib > self._most_mib:
            if not self._beyond_mib:
                self._say("memory", "reached", found_mib, self._most_mib)
            self._beyond_mib = found_mib
            if now_s - self._relieved_s >= _RELIEVE_EVERY_S:
                self._relieved_s = now_s
                self.relieve()
                _give_back()
        elif self._beyond_mib and found_mib < _LEFT_FRAC * self._most_mib:
            self._beyond_mib = 0.0
            self._say("memory", "left", found_mib, self._most_mib)

    def refusal(self, action: AnyAction) -> str | None:
        """Return why a command is refused now, or None; commands that end, save or release a guest never are."""
        if not self._beyond_mib or not isinstance(action, _NEW_WORK):
            return None
        return (
            f"its agent has {self._beyond_mib:.0f} MiB, more than --agent-memory-mib {self._most_mib}: it takes no new "
            "work until it has less"
        )

    def _say(self, what: str, state: str, value_mib: float, bound_mib: float) -> None:
        _log.warning("%s of this agent: bound of %g MiB %s, %.0f MiB now", what, bound_mib, state, value_mib)
        detail: dict[str, object] = {
            "what": what, "state": state, "value_mib": round(value_mib), "bound_mib": round(bound_mib),
        }  # fmt: skip
        self._report(DriverEvent(ITSELF, "limit", time.monotonic_ns(), detail))


def _give_back() -> None:
    """Collect unreferenced objects, and return free pages to the system."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # of glibc alone
        ctypes.CDLL(None).malloc_trim(0)
