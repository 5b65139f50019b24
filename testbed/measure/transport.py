"""Maximum flow from jobs through intervals, by Dinic's method, with rows of a matrix as arcs.

Greedy first: interval after interval serves the jobs with the least slack. That leaves little to do for
the augmenting paths, which take work back from intervals where another job needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Less than this part of a job's work counts as none: far above rounding, far below the accuracy of the bound.
TOLERANCE_FRAC = 1e-9


def unserved(work: Floats, arcs: Floats, capacity: Floats) -> NDArray[np.bool_]:
    """Return (J,) the source side of a minimum cut, which is empty if every job's work can be served.

    Job j supplies `work[j]`, sends at most `arcs[j, t]` to interval t, and interval t takes at most
    `capacity[t]`; (J,), (J, K) and (K,), all in the same unit. The cut holds every job that has work left,
    and every job that could give way to one of those.
    """
    return _Flow(work, arcs, capacity).solve()


class _Flow:
    """A flow in the making: `sent` (J, K), what jobs have `left` (J,), what intervals have `room` for (K,).

    As vertices, job j is j and interval t is J + t.
    """

    def __init__(self, work: Floats, arcs: Floats, capacity: Floats) -> None:
        self.jobs = work.size
        self.arcs = arcs
        self.sent = np.zeros_like(arcs)
        self.left = work.copy()
        self.room = capacity.copy()
        self.tiny = TOLERANCE_FRAC * work
        self.tiny_room = float(self.tiny.min())

    def solve(self) -> NDArray[np.bool_]:
        """Send all that can be sent; return the (J,) jobs that unserved work still reaches."""
        self._serve_least_slack_first()
        while True:
            level, found = self._levels()
            if not found:
                return level[: self.jobs] >= 0
            self._block(level)

    def _serve_least_slack_first(self) -> None:
        """Fill each interval in turn; slack is the time that a job could still wait."""
        later = np.cumsum(self.arcs[:, ::-1], axis=1)[:, ::-1]
        speed = self.arcs.max(axis=1)
        for interval in range(self.room.size):
            wanted = np.minimum(self.arcs[:, interval], self.left)
            jobs = np.flatnonzero(wanted > 0.0)
            slack = (later[jobs, interval] - self.left[jobs]) / speed[jobs]
            jobs = jobs[np.argsort(slack, kind="stable")]
            before = np.cumsum(wanted[jobs]) - wanted[jobs]
            given = np.clip(self.room[interval] - before, 0.0, wanted[jobs])
            self.sent[jobs, interval] = given
            self.left[jobs] -= given
            self.room[interval] -= given.sum()

    def _levels(self) -> tuple[Ints, bool]:
        """Return each vertex's distance from unserved work (-1: not reached), up to the first room found."""
        level = np.full(self.jobs + self.room.size, -1)
        job_level, interval_level = level[: self.jobs], level[self.jobs :]
        job_level[self.left > self.tiny] = 0
        frontier = np.flatnonzero(job_level == 0)
        depth = 0
        while frontier.size:
            usable = self.arcs[frontier] - self.sent[frontier] > self.tiny[frontier, None]
            reached = np.flatnonzero(usable.any(axis=0) & (interval_level < 0))
            interval_level[reached] = depth + 1
            if (self.room[reached] > self.tiny_room).any():
                return level, True
            depth += 2
            usable = self.sent[:, reached] > self.tiny[:, None]
            frontier = np.flatnonzero(usable.any(axis=1) & (job_level < 0))
            job_level[frontier] = depth
        return level, False

    def _block(self, level: Ints) -> None:
        """Send along shortest paths until each holds a full arc: depth-first, and dead ends are forgotten."""
        last = level.max()
        untried: dict[int, Iterator[int]] = {}
        current: dict[int, int] = {}
        for source in np.flatnonzero(level[: self.jobs] == 0).tolist():
            path = [source]
            while path and self.left[source] > self.tiny[source]:
                vertex = path[-1]
                at_end = level[vertex] == last
                if at_end and self.room[vertex - self.jobs] > self.tiny_room:
                    self._send(path)
                    path = [source]
                elif not at_end and self._choose(vertex, level, untried, current):
                    path.append(current[vertex])
                else:
                    path.pop()
                    if path:
                        del current[path[-1]]

    def _choose(self, vertex: int, level: Ints, untried: dict[int, Iterator[int]], current: dict[int, int]) -> bool:
        """Keep the arc in use at `vertex` or take its next one; tell whether there is any."""
        if vertex in current and self._residual(vertex, current[vertex]) > 0.0:
            return True
        current.pop(vertex, None)
        if vertex not in untried:
            untried[vertex] = self._successors(vertex, level)
        for successor in untried[vertex]:
            if self._residual(vertex, successor) > 0.0:
                current[vertex] = successor
                return True
        return False

    def _successors(self, vertex: int, level: Ints) -> Iterator[int]:
        if vertex < self.jobs:
            usable = self.arcs[vertex] - self.sent[vertex] > self.tiny[vertex]
            ahead = usable & (level[self.jobs :] == level[vertex] + 1)
            return iter((np.flatnonzero(ahead) + self.jobs).tolist())
        usable = self.sent[:, vertex - self.jobs] > self.tiny
        return iter(np.flatnonzero(usable & (level[: self.jobs] == level[vertex] + 1)).tolist())

    def _residual(self, tail: int, head: int) -> float:
        """Return what more can go from `tail` to `head`, 0 if that is tiny for the job."""
        if tail < self.jobs:
            interval = head - self.jobs
            amount = self.arcs[tail, interval] - self.sent[tail, interval]
            return float(amount) if amount > self.tiny[tail] else 0.0
        amount = self.sent[head, tail - self.jobs]
        return float(amount) if amount > self.tiny[head] else 0.0

    def _send(self, path: list[int]) -> None:
        """Move along one path, from a job with work left to an interval with room, as much as it allows."""
        arcs = list(pairwise(path))
        room = self.room[path[-1] - self.jobs]
        amount = min(self.left[path[0]], room, *(self._residual(tail, head) for tail, head in arcs))
        for tail, head in arcs:
            if tail < self.jobs:
                self.sent[tail, head - self.jobs] += amount
            else:
                self.sent[head, tail - self.jobs] -= amount
        self.left[path[0]] -= amount
        self.room[path[-1] - self.jobs] -= amount
