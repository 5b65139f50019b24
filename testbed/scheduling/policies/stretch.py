"""Yields for a given map by the estimated stretch, which depends on the past of jobs [RR 4.7].

A job with flow time ft and virtual time vt, both at this instant, has at the next pass, T later, the estimated stretch
(ft + T) / (vt + y T). The kernels raise its inverse x, which is linear in the yield y:
x = (vt + y T) / (ft + T), y = a x - b with a = (ft + T) / T and b = vt / T.
"""

from __future__ import annotations

import numpy as np

from testbed.scheduling.compiler import kernel, lean_kernel
from testbed.scheduling.policies.barrier import least_sum_of_inverses
from testbed.scheduling.policies.capacity import node_usage
from testbed.scheduling.policies.state import Cluster, Jobs
from testbed.scheduling.policies.view import Floats, Ints
from testbed.scheduling.policies.yields import (
    Crowd,
    constraints,
    equal_yields,
    gather,
    overloaded,
    raise_in_order,
    settle,
)

# The yield of a job whose past alone is better than the target stretch ([IPDPS] III.B).
LEAST_YIELD_FRAC = 0.01

_WAITS, _GROWS, _FIXED = range(3)


@lean_kernel
def yield_for(x: float, flow_time_s: float, virtual_time_s: float, period_s: float) -> float:
    """Return the yield for the next `period_s` that brings a job to an estimated stretch of 1 / x, at least 0 [RR 4.7].

    The estimate at the next pass is (ft + T) / (vt + y T), so that y = ((ft + T) x - vt) / T.
    A yield above 1 means that x cannot be reached.
    """
    return max(0.0, ((flow_time_s + period_s) * x - virtual_time_s) / period_s)


@kernel
def stretch_yields(active: Ints, jobs: Jobs, cluster: Cluster, time_s: float, period_s: float, average: bool) -> None:
    """Set the yields of /stretch-per for a map: the largest minimum of x, then use the remaining CPU [RR 4.7].

    With `average` (OPT=AVG) the sum of the estimated stretches is minimised, and no yield is below the yield that the
    largest minimum of x requires; the sum is within a relative `barrier.ACCURACY` of the optimum. Else (OPT=MAX) the
    minimum of x is raised repeatedly, like the minimum yield in [RR 4.6]: jobs on a full node, and jobs at a yield of
    1, are fixed, and the others are raised further; this is exact.

    A yield that the equation puts at 0 or below is set to `LEAST_YIELD_FRAC`, so that no job holds memory without
    making progress, as in [IPDPS] III.B ([RR] is silent on it). Where a node has more than 100 times the CPU need
    that it can serve, the least yield of all jobs is 1 / Λ instead. Yields are in (0, 1] for jobs that run, else 0.
    """
    needed = equal_yields(active, jobs, cluster, 1.0)
    slot, crowded = overloaded(needed)
    if crowded == 0:
        return
    floor = LEAST_YIELD_FRAC
    for node in range(needed.size):
        if needed[node] * floor > 1.0:
            floor = 1.0 / needed[node]
    slope, past = np.zeros(jobs.submit_time_s.size), np.zeros(jobs.submit_time_s.size)
    for row in active:
        slope[row] = (time_s - jobs.submit_time_s[row] + period_s) / period_s
        past[row] = cluster.virtual_time_s[row] / period_s
    crowd = gather(active, jobs, cluster, needed, slot, crowded)
    level = _raise_together(active, jobs, cluster, crowd, slope, past, floor, average)
    if average:
        for row in active:
            if cluster.running[row]:
                cluster.yield_frac[row] = min(1.0, max(floor, slope[row] * level - past[row]))
        _spread(active, jobs, cluster, slope, past)


@kernel
def _raise_together(
    active: Ints,
    jobs: Jobs,
    cluster: Cluster,
    crowd: Crowd,
    slope: Floats,
    past: Floats,
    floor: float,
    once: bool,
) -> float:
    """Raise x from 0, the same for all, with y = clamp(a x - b, floor, 1), and fix jobs that cannot follow.

    Events are sorted by x: a job leaves the floor, or reaches 1. Between events the CPU use of a node is linear in x,
    which gives the x at which the node is full. Set the yields; or, with `once`, only return the x of the first job
    that is fixed, the largest minimum. Here `crowd.limit` is an x, and `crowd.load` the slope of the node's use.
    """
    crowd.room[:] = crowd.room - crowd.load * floor
    crowd.load[:] = 0.0
    crowd.growing[:] = 0
    crowd.limit[:] = np.inf
    state = np.full(slope.size, _FIXED, dtype=np.int64)
    event_row, event_x = _events(active, cluster, slope, past, floor)
    for row in event_row:
        state[row] = _WAITS
        cluster.yield_frac[row] = floor

    level: float = 0.0
    happened = 0
    while True:
        full = _first_full(crowd.limit)
        if happened < event_row.size and event_x[happened] < crowd.limit[full]:
            row = event_row[happened]
            level = max(level, event_x[happened])
            happened += 1
            if state[row] == _WAITS:
                state[row] = _GROWS
                _change(row, 1, floor + past[row], slope[row], jobs, cluster, crowd)
            elif state[row] == _GROWS:
                state[row] = _FIXED
                cluster.yield_frac[row] = 1.0
                _change(row, -1, -(1.0 + past[row]), slope[row], jobs, cluster, crowd)
                if once:
                    return level
        elif crowd.limit[full] == np.inf:
            return level
        else:
            level = max(level, crowd.limit[full])
            _fix(full, level, floor, state, slope, past, jobs, cluster, crowd)
            if once:
                return level


@kernel
def _events(active: Ints, cluster: Cluster, slope: Floats, past: Floats, floor: float) -> tuple[Ints, Floats]:
    """Return the rows and the x, in order of x, at which running jobs leave the floor and (second) reach 1."""
    rows = np.empty(2 * active.size, dtype=np.int64)
    x = np.empty(2 * active.size)
    count = 0
    for row in active:
        if cluster.running[row]:
            rows[count], rows[count + 1] = row, row
            x[count] = (floor + past[row]) / slope[row]
            x[count + 1] = (1.0 + past[row]) / slope[row]
            count += 2
    order = np.argsort(x[:count], kind="mergesort")
    return rows[:count][order], x[:count][order]


@lean_kernel
def _first_full(limit: Floats) -> int:
    """Return the slot of the node that is full first."""
    first = 0
    for i in range(1, limit.size):
        if limit[i] < limit[first]:
            first = i
    return first


@lean_kernel
def _change(row: int, sign: int, room_frac: float, slope: float, jobs: Jobs, cluster: Cluster, crowd: Crowd) -> None:
    """Let a job start (1) or stop (-1) growing; `room_frac` is the CPU that its nodes gain at x = 0, per CPU need."""
    need = jobs.cpu_need_frac[row]
    for task in range(jobs.offset[row], jobs.offset[row + 1]):
        i = crowd.slot[cluster.task_node[task]]
        if i >= 0:
            crowd.growing[i] += sign
            crowd.load[i] += sign * need * slope
            crowd.room[i] += need * room_frac
            crowd.limit[i] = crowd.room[i] / crowd.load[i] if crowd.growing[i] > 0 else np.inf


@lean_kernel
def _fix(
    full: int,
    level: float,
    floor: float,
    state: Ints,
    slope: Floats,
    past: Floats,
    jobs: Jobs,
    cluster: Cluster,
    crowd: Crowd,
) -> None:
    """Fix the growing jobs of a full node at their yields for x = `level`."""
    position = crowd.head[full]
    while position >= 0:
        row = crowd.row_at[position]
        position = crowd.following[position]
        if state[row] == _GROWS:
            level_frac = min(1.0, max(floor, slope[row] * level - past[row]))
            cluster.yield_frac[row] = level_frac
            _change(row, -1, -(level_frac + past[row]), slope[row], jobs, cluster, crowd)
        state[row] = _FIXED
    crowd.limit[full] = np.inf


@kernel
def _spread(active: Ints, jobs: Jobs, cluster: Cluster, slope: Floats, past: Floats) -> None:
    """Allocate the CPU that the least yields, already set, leave: minimise the sum of the estimated stretches."""
    room = 1.0 - _used(active, jobs, cluster)
    rows, slot = settle(active, jobs, cluster, room)
    if rows.size == 0:
        return
    weight, open_room = constraints(rows, slot, jobs, cluster, room)
    upper, above, below = np.empty(rows.size), np.empty(rows.size), np.empty(rows.size)
    for k in range(rows.size):
        row = rows[k]
        upper[k] = 1.0 - cluster.yield_frac[row]
        above[k] = slope[row]
        below[k] = past[row] + cluster.yield_frac[row]
    more = least_sum_of_inverses(weight, open_room, upper, above, below)
    for k in range(rows.size):
        cluster.yield_frac[rows[k]] += more[k]
    # The solver ends strictly inside the constraints, so a little CPU remains.
    raise_in_order(rows, jobs, cluster, 1.0 - _used(active, jobs, cluster))


@kernel
def _used(active: Ints, jobs: Jobs, cluster: Cluster) -> Floats:
    """Return the (N,) CPU in use."""
    share = np.zeros(jobs.cpu_need_frac.size)
    for row in active:
        share[row] = jobs.cpu_need_frac[row] * cluster.yield_frac[row]
    return node_usage(active, jobs, cluster, share)
