"""Waiting and work of guests, for tests of the testbed: the tools that `testbed.testing` has for authors of drivers."""

from __future__ import annotations

from testbed.testing.live import ENDLESS_UNITS, HANG_S, THROTTLED_CORES, until, wait_until

__all__ = ["ENDLESS_UNITS", "HANG_S", "THROTTLED_CORES", "until", "wait_until"]
