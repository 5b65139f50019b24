"""Dedicated rates: the speed of each kind of job alone at full yield, measured before a run with its programs.

A core's speed alone does not determine a job's run time: a task that is capped at a quarter of a core starts each of
its slices with cold caches, and ranks of a parallel job wait for each other and may share a physical core.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median_low
from typing import NamedTuple

import numpy as np

from testbed.bus.drivers import traits_in
from testbed.bus.telemetry import Telemetry
from testbed.errors import RunError
from testbed.lab.fleet import Node
from testbed.lab.guests import cpu_ns_of_unit, prepare_jobs
from testbed.lab.lab import Lab
from testbed.scenario.schema import ServeTable
from testbed.scheduling.workload.jobs import Job

ENDLESS_WALL_S = 1e9
CALIBRATION_S = 2.5
MACHINE_CALIBRATION_S = 20.0  # rates of an emulated guest, seven times: sd 2.1 %; in 2.5 s 3.5 %
PROBED_QUANTILE = 2 / 3  # up to half of the probes are slower than the core: interrupted, or with cold caches


class Dedicated(NamedTuple):
    """Dedicated rates: work units per second and core by shape, and the core speed that agents probed meanwhile.

    The speed is the quantile `PROBED_QUANTILE` of the probes, None without probes.
    """

    rates: dict[Shape, float]
    probed_units_per_s: float | None


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


async def measure(lab: Lab, jobs: Mapping[Shape, Job]) -> Dedicated:
    """Return the work units per second and core of a task whose job runs alone, by shape, and the nodes' core speed.

    The rate of each job is measured alone, for `calibration_s`; the slowest of its tasks counts. The rate is the
    program's own count by its own clock. The core speed that the lab has measured sets the length of iterations.
    """
    scenario, facts = lab.scenario, lab.facts[0]
    window_s = scenario.programs.calibration_s
    if window_s is None:
        window_s = MACHINE_CALIBRATION_S if traits_in(facts).hypervisor else CALIBRATION_S
    rates = {}
    probes: list[float] = []
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
            cpu_ns_per_unit=cpu_ns_of_unit(scenario.programs, facts, lab.core_units_per_s),
        )
        try:
            async with lab.job_of(prepared.specs) as alone:
                await alone.start()
                with _probes_at(lab, alone.nodes, probes):
                    slowest = await alone.rate(window_s)
        except RunError as error:
            raise RunError(f"{shape}: {error}") from error
        rates[shape] = slowest / (job.cpu_need_frac * facts.cpus)
    told = [probe for probe in probes if probe > 0.0]
    return Dedicated(rates, float(np.quantile(told, PROBED_QUANTILE)) if told else None)


@contextmanager
def _probes_at(lab: Lab, nodes: Sequence[str], probes: list[float]) -> Iterator[None]:
    """Append the core speeds that the agents of these nodes probe meanwhile, not while machines boot before and after.

    Probes on idle nodes are faster.
    """
    hear = lab.fleet.on_telemetry

    def append(node: Node, record: Telemetry, _taken_ns: int) -> None:
        if node.name in nodes:
            probes.append(record.core_units_per_s)

    lab.fleet.on_telemetry = append
    try:
        yield
    finally:
        lab.fleet.on_telemetry = hear
