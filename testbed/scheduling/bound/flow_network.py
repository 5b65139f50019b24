"""The flow network from jobs to time intervals: windows of jobs, work sent over each arc, work left.

The sorted release dates and deadlines bound the intervals. A job may be served in the intervals of its window, in each
at most at its rate; all jobs together get `nodes` times an interval's length. The window of a job is a range of
intervals, so its arcs are a contiguous part of one array.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.scheduling.compiler import kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Less than this part of a job's work counts as 0: far above rounding errors, far below the accuracy of the bound.
TOLERANCE_FRAC = 1e-9


class Network(NamedTuple):
    """J jobs, K intervals, M arcs; `sent`, `left` and `room` change as work is served, the rest is constant.

    Times are in seconds, rates in CPUs, amounts in CPU seconds.
    """

    times_s: Floats  # (K + 1,) ascending: interval k lasts from [k] to [k + 1]
    deadline_s: Floats  # (J,)
    rate: Floats  # (J,) the most CPUs that a job can use at a time
    first: Ints  # (J,) its window is intervals [first, past)
    past: Ints  # (J,)
    base: Ints  # (J,) its arc to interval k has the index base + k
    members_from: Ints  # (K + 1,) the jobs that may be served in interval k are members[[k]:[k + 1]]
    members: NDArray[np.int32]  # (M,)
    tiny: Floats  # (J,) amounts of a job up to this count as 0
    tiny_room: float
    sent: Floats  # (M,)
    left: Floats  # (J,) work that has not been sent
    room: Floats  # (K,) capacity left


@kernel
def make_network(release_s: Floats, deadline_s: Floats, work: Floats, rate: Floats, nodes: float) -> Network:
    """Return the network of jobs (J,) whose work (CPU seconds) has not been sent yet; rates are limited to `nodes`."""
    jobs = release_s.size
    times_s, first, past = _intervals(release_s, deadline_s)
    intervals = times_s.size - 1
    base = np.empty(jobs, np.int64)
    members_from = np.zeros(intervals + 2, np.int64)
    arcs = 0
    for job in range(jobs):
        base[job] = arcs - first[job]
        arcs += past[job] - first[job]
        members_from[first[job] + 1] += 1
        members_from[past[job] + 1] -= 1
    for _ in range(2):  # prefix sums: changes become numbers of members, then positions
        for interval in range(intervals):
            members_from[interval + 1] += members_from[interval]
    members_from = members_from[: intervals + 1]
    members = np.empty(arcs, np.int32)
    position = members_from.copy()
    for job in range(jobs):
        for interval in range(first[job], past[job]):
            members[position[interval]] = job
            position[interval] += 1
    tiny = TOLERANCE_FRAC * work
    room = nodes * (times_s[1:] - times_s[:-1])
    return Network(
        times_s,
        deadline_s,
        np.minimum(rate, nodes),
        first,
        past,
        base,
        members_from,
        members,
        tiny,
        tiny.min(),
        np.zeros(arcs),
        work.copy(),
        room,
    )


@kernel
def _intervals(release_s: Floats, deadline_s: Floats) -> tuple[Floats, Ints, Ints]:
    """Return the (K + 1,) distinct times, and the (J,) indices among them at which a job's window begins and ends."""
    jobs = release_s.size
    all_s = np.concatenate((release_s, deadline_s))
    times_s = np.empty(2 * jobs)
    position = np.empty(2 * jobs, np.int64)
    count = 0
    for index in np.argsort(all_s, kind="mergesort"):
        if count == 0 or all_s[index] > times_s[count - 1]:
            times_s[count] = all_s[index]
            count += 1
        position[index] = count - 1
    return times_s[:count].copy(), position[:jobs].copy(), position[jobs:].copy()


@kernel
def spare(network: Network, job: int, interval: int) -> float:
    """Return the CPU seconds that the job's rate still allows in this interval of its window."""
    length_s = network.times_s[interval + 1] - network.times_s[interval]
    most: float = network.rate[job] * length_s
    return most - float(network.sent[network.base[job] + interval])
