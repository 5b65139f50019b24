"""Dedicated rates: the speed of each kind of job alone at full yield, measured before a run with its programs.

A core's speed alone does not determine a job's run time: a task that is capped at a quarter of a core starts each of
its slices with cold caches, and ranks of a parallel job wait for each other and may share a physical core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from testbed.errors import RunError
from testbed.lab.guests import prepare_jobs
from testbed.lab.lab import Lab
from testbed.scenario.schema import ServeTable
from testbed.scheduling.workload.jobs import Job

ENDLESS_WALL_S = 1e9


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties that determine a job's dedicated rate: one task or several, the CPU need of each, its program.

    An empty `program` stands for the program of the scenario.
    """

    parallel: bool
    cpu_need_frac: float
    program: str = ""

    @classmethod
    def of(cls, job: Job) -> Shape:
        """Return the shape of a job."""
        return cls(job.tasks > 1, job.real_need_frac, job.program or "")

    def __str__(self) -> str:
        what = f"{'parallel' if self.parallel else 'serial'}, need {self.cpu_need_frac:g}"
        return f"{what}, program {self.program}" if self.program else what


def shapes_of(table: ServeTable, nodes: int) -> set[Shape]:
    """Return the shapes of the jobs that users may submit to a served lab with this number of nodes.

    A shape of parallel jobs is left out if two of its tasks do not fit on the nodes.
    """
    return {
        Shape(parallel, need, program)
        for parallel in (False, True)
        for need in table.cpu_needs_frac
        for program in ("", *table.programs)
        if not parallel or nodes > 1 or need <= 0.5
    }


def served_representatives(table: ServeTable, nodes: int) -> dict[Shape, Job]:
    """Return a job to measure for each of these shapes; a parallel job has one task per node, and at least two."""
    return {
        shape: Job(
            number, 0.0, max(2, nodes) if shape.parallel else 1, shape.cpu_need_frac, table.least_mem_frac, 1e9,
            program=shape.program or None,
        )
        for number, shape in enumerate(sorted(shapes_of(table, nodes), key=str))
    }  # fmt: skip


def representatives(jobs: Sequence[Job], nodes: int) -> dict[Shape, Job]:
    """Return a job to measure for each shape: median size of its kind, at most one task per node, little memory."""
    by_shape: dict[Shape, list[Job]] = {}
    for job in jobs:
        by_shape.setdefault(Shape.of(job), []).append(job)
    return {
        shape: replace(
            min(alike, key=lambda job: job.mem_req_frac),
            job_id=number,
            tasks=min(nodes, median_low(job.tasks for job in alike)),
            submit_time_s=0.0,
            run_time_s=1e9,
            cpu_need_frac=shape.cpu_need_frac,
            true_need_frac=None,
        )
        for number, (shape, alike) in enumerate(by_shape.items())
    }


async def measure(lab: Lab, jobs: Mapping[Shape, Job]) -> dict[Shape, float]:
    """Return the work units per second and core of a task whose job runs alone, by shape.

    Each job runs alone for `calibration_s` after its first progress; the slowest of its tasks counts. The rate is the
    program's own count by its own clock. The core speed that the lab has measured sets the length of iterations.
    """
    scenario, facts = lab.scenario, lab.facts[0]
    rates = {}
    for shape, kind in jobs.items():
        job = replace(kind, run_time_s=min(kind.run_time_s, ENDLESS_WALL_S * scenario.time_scale))
        (prepared,) = prepare_jobs(
            [job],
            scenario,
            f"{lab.tag}-alone",
            facts.cpus,
            facts.memory_mib,
            lambda _job: lab.core_units_per_s,
            lab.addresses,
            core_units_per_s=lab.core_units_per_s,
        )
        try:
            async with lab.job_of(prepared.specs) as alone:
                await alone.start()
                slowest = await alone.rate(scenario.programs.calibration_s)
        except RunError as error:
            raise RunError(f"{shape}: {error}") from error
        rates[shape] = slowest / (job.cpu_need_frac * facts.cpus)
    return rates
