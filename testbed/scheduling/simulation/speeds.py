"""Simulation of nodes whose speed changes over time: jobs progress at their yields times the speed of their nodes.

A job advances with its slowest node, as tasks of parallel jobs wait for each other. A policy gets the same information
as from real nodes: virtual times that grow as work is done. A change of speed alone is not an event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from testbed.scheduling.compiler import bound
from testbed.scheduling.policies.state import Cluster, Jobs
from testbed.scheduling.policies.view import Floats, Policy
from testbed.scheduling.simulation.engine import run_events
from testbed.scheduling.simulation.overheads import OverheadTable
from testbed.scheduling.simulation.views import Views
from testbed.scheduling.simulation.world import ACTIVE, SUBMITTED, World
from testbed.scheduling.workload.jobs import Job


@dataclass(frozen=True, slots=True, eq=False)
class NodeSpeeds:
    """The speed of each node over time, relative to the speed for which run times are given.

    From `at_s[k]` to the next instant (K,), in trace seconds and increasing, node n has the speed `relative[k, n]`
    (K, N), more than 0. The first and the last speed also hold before and after. Raises ValueError for other arrays.
    """

    at_s: Floats
    relative: Floats

    def __post_init__(self) -> None:
        if self.at_s.size == 0 or np.any(np.diff(self.at_s) <= 0.0) or not np.all(np.isfinite(self.at_s)):
            raise ValueError(f"instants of speeds must be finite and increase: {self.at_s.tolist()[:5]}")
        if self.relative.ndim != 2 or len(self.relative) != self.at_s.size:
            raise ValueError(f"speeds are {self.relative.shape}: expected a row for each of {self.at_s.size} instants")
        if not np.all(np.isfinite(self.relative) & (self.relative > 0.0)):
            raise ValueError("speeds must be finite and more than 0")

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self.relative.shape[1])


class Pace:
    """Converts time to seconds at full speed, for the slowest of some nodes."""

    def __init__(self, speeds: NodeSpeeds, nodes: Sequence[int]) -> None:
        self._at_s = speeds.at_s
        self._speed: Floats = speeds.relative[:, list(nodes)].min(axis=1)
        self._made_s = np.concatenate(([0.0], np.cumsum(np.diff(self._at_s) * self._speed[:-1])))

    def between(self, from_s: float, until_s: float) -> float:
        """Return the seconds at full speed from one instant to a later one."""
        return self._made(until_s) - self._made(from_s)

    def after(self, from_s: float, full_s: float) -> float:
        """Return the instant at which `full_s` seconds at full speed have passed since `from_s`."""
        made_s = self._made(from_s) + full_s
        place = max(int(np.searchsorted(self._made_s, made_s, side="right")) - 1, 0)
        return float(self._at_s[place] + (made_s - self._made_s[place]) / self._speed[place])

    def _made(self, time_s: float) -> float:
        """Return the seconds at full speed since the first instant, negative before it."""
        place = max(int(np.searchsorted(self._at_s, time_s, side="right")) - 1, 0)
        return float(self._made_s[place] + (time_s - self._at_s[place]) * self._speed[place])


class Paced(Views):
    """A policy in the event loop, on nodes with changing speeds."""

    def __init__(
        self, policy: Policy, jobs: Sequence[Job], table: Jobs, cluster: Cluster, world: World,
        overheads: OverheadTable, speeds: NodeSpeeds,
    ) -> None:  # fmt: skip
        super().__init__(policy, jobs, table, cluster, world, overheads)
        self._speeds = speeds
        self._paces: dict[tuple[int, ...], Pace] = {}

    def loop(self) -> Callable[..., int]:
        """Return `run_events` with this policy on these nodes."""
        return bound(
            run_events, decide=self.decide, next_wake_s=self.next_wake_s, clock_ns=self.clock_ns,
            next_event_s=self.next_event_s, advance=self.advance,
        )  # fmt: skip

    def next_event_s(self, jobs: Jobs, cluster: Cluster, world: World, speed_of: Floats, tick_s: float) -> float:
        """See `engine.next_event_s`."""
        first_s = tick_s
        if world.counts[SUBMITTED] < world.rows.size:
            first_s = min(first_s, float(jobs.submit_time_s[world.counts[SUBMITTED]]))
        for row in world.active[: world.counts[ACTIVE]].tolist():
            end_s = np.inf
            if speed_of[row] > 0.0:
                left_s = max(world.run_time_s[row] - cluster.virtual_time_s[row], 0.0)
                from_s = max(world.time_s[0], world.free_at_s[row])
                end_s = max(self._pace(row).after(from_s, left_s / speed_of[row]), from_s)
                first_s = min(first_s, end_s)
            world.expected_end_s[row] = end_s
        return float(first_s)

    def advance(self, cluster: Cluster, world: World, speed_of: Floats, time_s: float) -> None:
        """See `engine.advance`."""
        now_s = world.time_s[0]
        for row in world.active[: world.counts[ACTIVE]].tolist():
            if cluster.running[row]:
                from_s = min(max(now_s, world.free_at_s[row]), time_s)
                cluster.virtual_time_s[row] += speed_of[row] * self._pace(row).between(from_s, time_s)
                world.penalty_s[row] += from_s - now_s
        world.time_s[0] = time_s

    def _pace(self, row: int) -> Pace:
        nodes = tuple(self._cluster.task_node[self._table.offset[row] : self._table.offset[row + 1]].tolist())
        if nodes not in self._paces:
            self._paces[nodes] = Pace(self._speeds, nodes)
        return self._paces[nodes]
