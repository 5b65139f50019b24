"""The priority of jobs: flow time over the square of virtual time [RR 4.1]."""

from __future__ import annotations

import numpy as np

from testbed.scheduling.compiler import kernel, lean_kernel
from testbed.scheduling.policies.state import Cluster, Jobs
from testbed.scheduling.policies.view import Floats, Ints


@lean_kernel
def priority(flow_time_s: float, virtual_time_s: float, least_flow_time_s: float) -> float:
    """Return a priority in 1/s; infinite for a job that has not progressed yet.

    A flow time below `least_flow_time_s` counts as that: 0 in [RR 4.1], 30 in [IPDPS III.A].
    """
    square = virtual_time_s * virtual_time_s
    if square > 0.0:
        return max(flow_time_s, least_flow_time_s) / square
    return np.inf


@kernel
def by_decreasing_priority(rows: Ints, jobs: Jobs, cluster: Cluster, time_s: float, least_flow_time_s: float) -> Ints:
    """Return the ascending `rows` again, highest priority first; of equals, the one submitted first comes first.

    Reversed, this is the order in which jobs are chosen to be paused.
    """
    count = rows.size
    out = np.empty(count, dtype=np.int64)
    begun = np.empty(count, dtype=np.int64)
    negative = np.empty(count)
    # Jobs without progress come first, in order of submission; most jobs of a long queue are of this kind.
    begins = _divide(rows, jobs, cluster, time_s, least_flow_time_s, out, begun, negative)
    fresh = count - begins
    if begins == 1:
        out[fresh] = begun[0]
    if begins <= 1:
        return out
    order = np.argsort(negative[:begins], kind="mergesort")
    for index in range(begins):
        out[fresh + index] = begun[order[index]]
    return out


@lean_kernel
def _divide(
    rows: Ints,
    jobs: Jobs,
    cluster: Cluster,
    time_s: float,
    least_flow_time_s: float,
    fresh: Ints,
    begun: Ints,
    negative: Floats,
) -> int:
    """Write rows of infinite priority to `fresh`, others to `begun` with `negative` priority; count the others."""
    freshes = 0
    begins = 0
    for row in rows:
        value = priority(time_s - jobs.submit_time_s[row], cluster.virtual_time_s[row], least_flow_time_s)
        if value == np.inf:
            fresh[freshes] = row
            freshes += 1
        else:
            begun[begins] = row
            negative[begins] = -value
            begins += 1
    return begins
