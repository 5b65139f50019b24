"""Helpers for live tests that do not depend on the machine's speed: endless work, throttled work, polling.

A live test starts real guests or real programs. They must still be working at every step of the test, also on a machine
that is slow or stalls for seconds. Their work is therefore endless (`ENDLESS_UNITS`), or finite and throttled by a CPU
cap (`THROTTLED_CORES`) until the test lets it finish.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

ENDLESS_UNITS = 1 << 50  # more work units than any machine does during a test; programs accept at most 2**53
THROTTLED_CORES = 0.02  # a second of work takes 50 s
HANG_S = 900.0  # timeout after which a test hangs; so long that no result depends on the speed of the machine
_POLL_S = 0.02


def wait_until(there: Callable[[], object], what: str) -> None:
    """Poll until `there()` is true; raises `AssertionError` with `what` if the test hangs."""
    hangs_s = time.monotonic() + HANG_S
    while not there():
        assert time.monotonic() < hangs_s, f"{what}: not within {HANG_S:g} s"
        time.sleep(_POLL_S)


async def until(there: Callable[[], object], what: str) -> None:
    """Poll until `there()` is true, in the event loop; raises `AssertionError` with `what` if the test hangs."""
    hangs_s = time.monotonic() + HANG_S
    while not there():
        assert time.monotonic() < hangs_s, f"{what}: not within {HANG_S:g} s"
        await asyncio.sleep(_POLL_S)
