"""Augmenting paths from jobs with work left to intervals with free capacity, through jobs that can be served elsewhere.

An arc leads from a job to an interval in which the job can be served more, or from an interval to a job whose service
there can be taken back. Jobs and intervals are vertices: job j is vertex j, interval k is vertex J + k.
"""

from __future__ import annotations

import numpy as np

from testbed.scheduling.bound.flow_network import Ints, Network, spare
from testbed.scheduling.compiler import kernel


@kernel
def find_levels(network: Network, level: Ints, queue: Ints) -> tuple[int, int]:
    """Set each vertex's distance from jobs with work left (-1: not reached), up to the nearest intervals with capacity.

    Returns the number of jobs with work left, which come first in `queue` (J,), and the level of those intervals,
    -1 if there are none.
    """
    jobs = network.left.size
    level[:] = -1
    sources = 0
    for job in range(jobs):
        if network.left[job] > network.tiny[job]:
            level[job] = 0
            queue[sources] = job
            sources += 1
    depth = -1
    at, queued = 0, sources
    while at < queued:
        job = queue[at]
        at += 1
        if 0 <= depth <= level[job]:
            break
        for interval in range(network.first[job], network.past[job]):
            if level[jobs + interval] >= 0 or spare(network, job, interval) <= network.tiny[job]:
                continue
            level[jobs + interval] = level[job] + 1
            if network.room[interval] > network.tiny_room:
                depth = level[job] + 1
            elif depth < 0:
                queued = _reach_members(network, interval, level, queue, queued)
    return sources, depth


@kernel
def _reach_members(network: Network, interval: int, level: Ints, queue: Ints, queued: int) -> int:
    """Queue the jobs whose service in this interval can be taken back; return the number of queued jobs."""
    for job in network.members[network.members_from[interval] : network.members_from[interval + 1]]:
        if level[job] < 0 and network.sent[network.base[job] + interval] > network.tiny[job]:
            level[job] = level[network.left.size + interval] + 1
            queue[queued] = job
            queued += 1
    return queued


@kernel
def send_along_levels(network: Network, level: Ints, sources: Ints, depth: int) -> None:
    """Send a blocking flow along paths that climb one level per step; the depth-first search visits dead ends once."""
    jobs = network.left.size
    path = np.empty(depth + 1, np.int64)
    # (J + K,) the arc to try next: an interval for a job, a position among the members for an interval.
    current = np.concatenate((network.first, network.members_from[:-1]))
    for source in sources:
        path[0] = source
        steps = 0
        while steps >= 0 and network.left[source] > network.tiny[source]:
            vertex = path[steps]
            if steps == depth and network.room[vertex - jobs] > network.tiny_room:
                _send(network, path)
                steps = 0
                continue
            successor = _successor(network, vertex, level, current) if steps < depth else -1
            if successor >= 0:
                steps += 1
                path[steps] = successor
            else:
                steps -= 1
                if steps >= 0:
                    current[path[steps]] += 1


@kernel
def _successor(network: Network, vertex: int, level: Ints, current: Ints) -> int:
    """Return the head of the first usable arc of a vertex, from its current arc on, or -1."""
    jobs = network.left.size
    if vertex < jobs:
        for interval in range(current[vertex], network.past[vertex]):
            ahead = level[jobs + interval] == level[vertex] + 1
            if ahead and spare(network, vertex, interval) > network.tiny[vertex]:
                current[vertex] = interval
                return jobs + interval
        current[vertex] = network.past[vertex]
        return -1
    interval = vertex - jobs
    for position in range(current[vertex], network.members_from[interval + 1]):
        job = int(network.members[position])
        ahead = level[job] == level[vertex] + 1
        if ahead and network.sent[network.base[job] + interval] > network.tiny[job]:
            current[vertex] = position
            return job
    current[vertex] = network.members_from[interval + 1]
    return -1


@kernel
def _send(network: Network, path: Ints) -> None:
    """Send the most work that a path allows, from a job with work left to an interval with free capacity."""
    jobs = network.left.size
    source, sink = path[0], path[-1] - jobs
    amount = min(network.left[source], network.room[sink])
    for step in range(path.size - 1):
        tail, head = path[step], path[step + 1]
        if tail < jobs:
            amount = min(amount, spare(network, tail, head - jobs))
        else:
            amount = min(amount, network.sent[network.base[head] + tail - jobs])
    for step in range(path.size - 1):
        tail, head = path[step], path[step + 1]
        if tail < jobs:
            network.sent[network.base[tail] + head - jobs] += amount
        else:
            network.sent[network.base[head] + tail - jobs] -= amount
    network.left[source] -= amount
    network.room[sink] -= amount
