"""What the models of parallel jobs know of programs: the work of each task, and which task waits for which."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.bus.topology import neighbours
from testbed.scheduling.workload.jobs import Job


@dataclass(frozen=True, slots=True)
class SharingModel:
    """What the model knows of programs and of the exchange; times are trace seconds.

    `topologies` are those of parallel jobs, by job id modulo their number. With the imbalance `1/i` the i-th task has a
    part 1/i of the work of the first.
    """

    topologies: tuple[str, ...] = ("ring",)
    imbalance: str = "uniform"
    period_s: float = 5.0
    grant_s: float = 5.0

    def parts(self, job: Job) -> tuple[float, ...]:
        """Return the work of each task as a part of that of the task with the most."""
        falls = self.imbalance == "1/i" and job.tasks > 1
        return tuple(1.0 / (task + 1 if falls else 1) for task in range(job.tasks))

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
