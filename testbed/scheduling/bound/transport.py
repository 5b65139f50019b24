"""Maximum flow from jobs through the intervals of their windows: a greedy schedule, then shortest augmenting paths.

The greedy schedule goes through the intervals once: in each, work that cannot be postponed comes first, then the
earliest deadline. It serves nearly all work, so that few augmenting paths remain to be found (Dinic's method,
`testbed.scheduling.bound.flow_paths`). They take intervals back from jobs that can be served at another time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.scheduling.bound.flow_network import Floats, Ints, Network, make_network, spare
from testbed.scheduling.bound.flow_paths import find_levels, send_along_levels
from testbed.scheduling.compiler import kernel


@kernel
def unserved(release_s: Floats, deadline_s: Floats, work: Floats, rate: Floats, nodes: float) -> NDArray[np.bool_]:
    """Return (J,) the source side of a minimum cut, which is empty if every job's work can be served in time.

    Job j has `work` (CPU seconds, > 0) to be done in [release_s, deadline_s), at most `rate` (CPUs) at a time; all
    jobs together get `nodes` CPUs. The cut contains every job that has work left, and every job that could give
    way to such a job.
    """
    network = make_network(release_s, deadline_s, work, rate, nodes)
    _serve_in_order(network)
    jobs = release_s.size
    level = np.empty(jobs + network.room.size, np.int64)
    queue = np.empty(jobs, np.int64)
    while True:
        sources, depth = find_levels(network, level, queue)
        if depth < 0:
            return level[:jobs] >= 0
        send_along_levels(network, level, queue[:sources], depth)


@kernel
def _serve_in_order(network: Network) -> None:
    """Serve jobs greedily, interval after interval."""
    waiting = np.empty(network.left.size, np.int64)
    for interval in range(network.room.size):
        count = 0
        wanted = 0.0
        for member in network.members[network.members_from[interval] : network.members_from[interval + 1]]:
            if network.left[member] > 0.0:
                waiting[count] = member
                count += 1
                wanted += min(network.left[member], spare(network, member, interval))
        if wanted > network.room[interval]:
            _choose(network, interval, waiting[:count])
        else:
            for job in waiting[:count]:
                _serve(network, job, interval, network.left[job])


@kernel
def _choose(network: Network, interval: int, waiting: Ints) -> None:
    """Serve jobs in an interval without capacity for all: work that cannot be postponed, then by deadline."""
    due_s = np.empty(waiting.size)
    for index, job in enumerate(waiting):
        later = network.rate[job] * (network.deadline_s[job] - network.times_s[interval + 1])
        _serve(network, job, interval, max(network.left[job] - later, 0.0))
        due_s[index] = network.deadline_s[job]
    for index in np.argsort(due_s, kind="mergesort"):
        if network.room[interval] <= 0.0:
            break
        _serve(network, waiting[index], interval, network.left[waiting[index]])


@kernel
def _serve(network: Network, job: int, interval: int, amount: float) -> None:
    """Send `amount` of a job's work to an interval, as far as the interval's capacity and the job's rate allow."""
    given = max(min(amount, network.room[interval], spare(network, job, interval)), 0.0)
    network.sent[network.base[job] + interval] += given
    network.left[job] -= given
    network.room[interval] -= given
