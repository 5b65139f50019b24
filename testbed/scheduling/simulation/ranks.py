"""Model of the programs of parallel jobs: the work of each task, and which task waits for which."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from testbed.bus.imbalance import drift_of, part
from testbed.bus.topology import neighbours
from testbed.scheduling.workload.jobs import Job

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class SharingModel:
    """Parameters of programs and of the exchange of shares; times are trace seconds.

    `topologies` are those of parallel jobs, by job id modulo their number. `imbalance` is as for programs
    (`testbed.bus.imbalance`), whose iterations take `iteration_s` on a dedicated node.
    `watch` is called with the time, the row of a job, its virtual time, and the shares in force of its tasks as parts
    of a node, at its start and whenever shares or work have moved.
    """

    topologies: tuple[str, ...] = ("ring",)
    imbalance: str = "uniform"
    period_s: float = 5.0
    grant_s: float = 5.0
    iteration_s: float = 0.04
    watch: Callable[[float, int, float, Sequence[float]], None] | None = None

    def parts(self, job: Job, done_s: float = 0.0) -> tuple[float, ...]:
        """Return the work of each task relative to the task with the most work, at a virtual time of the job."""
        moves = self._moves(done_s)
        return tuple(1.0 / part(self.imbalance, task, job.tasks, moves) for task in range(job.tasks))

    def until_move_s(self, job: Job, done_s: float) -> float:
        """Return the virtual time until the work moves to other tasks."""
        every = drift_of(self.imbalance)
        if every is None or job.tasks == 1:
            return math.inf
        return (self._moves(done_s) + 1) * every * self.iteration_s - done_s

    def _moves(self, done_s: float) -> int:
        every = drift_of(self.imbalance)
        return 0 if every is None else math.floor(done_s / (every * self.iteration_s) + _ROUNDING)

    def towards(self, job: Job, slowest: int) -> list[int | None]:
        """Return the neighbour that each task waits for: the next one on the way to the slowest task."""
        topology = self.topologies[job.job_id % len(self.topologies)]
        found: list[int | None] = [None] * job.tasks
        reached = [slowest]
        for task in reached:
            for near in neighbours(topology, task, job.tasks):
                if near not in reached:
                    found[near] = task
                    reached.append(near)
        return found


PLAIN = SharingModel()
