"""Which job matters more: flow time over the square of virtual time [RR 4.1]."""

from __future__ import annotations

import numpy as np

from testbed.policies.view import Floats, Ints


def priorities(time_s: float, submit_time_s: Floats, virtual_time_s: Floats) -> Floats:
    """Return (J,) priorities in 1/s; infinite for a job that has not progressed yet."""
    priority = np.full(virtual_time_s.size, np.inf)
    begun = virtual_time_s > 0.0
    priority[begun] = (time_s - submit_time_s[begun]) / virtual_time_s[begun] ** 2
    return priority


def by_decreasing_priority(priority: Floats) -> Ints:
    """Return the rows, highest priority first; of equals, the one submitted first comes first.

    Reversed, this is the order in which victims are sought.
    """
    return np.argsort(-priority, kind="mergesort").astype(np.int64)
