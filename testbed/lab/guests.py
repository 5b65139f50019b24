"""Prepares the jobs of a trace as guests of a lab: the work of each program is sized to the run time in the trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from testbed.bus.drivers import traits_in
from testbed.bus.messages import GuestSpec, NodeFacts, ProgramSpec
from testbed.bus.need_profile import WHOLE
from testbed.errors import UserError
from testbed.lab.guest_specs import program_spec
from testbed.scenario.schema import ProgramsTable, Scenario
from testbed.scenario.workload_tables import WorkMeasure
from testbed.scheduling.workload.jobs import Job

MOST_WORK_UNITS = 2**62


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """A job of the trace with the guests of its tasks, and the trace seconds per work unit of a task."""

    job: Job
    specs: tuple[GuestSpec, ...]
    trace_s_per_unit: float


def measure_of_work(programs: ProgramsTable, facts: NodeFacts) -> WorkMeasure:
    """Return the measure of the work of jobs on such nodes: by default CPU time where programs can read it."""
    traits = traits_in(facts)
    return programs.work or ("units" if traits.hypervisor or traits.simulated else "cpu-time")


def cpu_ns_of_unit(programs: ProgramsTable, facts: NodeFacts, core_units_per_s: float) -> float:
    """Return the CPU time in ns that a work unit is on such nodes with this core speed; 0 if work is in units."""
    return 1e9 / core_units_per_s if measure_of_work(programs, facts) == "cpu-time" else 0.0


def memory_of(job: Job, node_memory_mib: int) -> int:
    """Return the memory of one task in MiB, rounded down, so that tasks that fit by fractions also fit in MiB."""
    return _part_mib(job.mem_req_frac, node_memory_mib)


def _part_mib(frac: float, node_memory_mib: int) -> int:
    return int(frac * node_memory_mib + 1e-6)


def program_of(job: Job, programs: ProgramsTable) -> str:
    """Return the name of the program that a job runs."""
    return job.program or (programs.parallel if job.tasks > 1 else programs.serial)


def _program(
    job: Job,
    task: int,
    programs: ProgramsTable,
    run_wall_s: float,
    cores: float,
    units_per_core_s: float,
    cpu_ns_per_unit: float,
    seed: int,
) -> ProgramSpec:
    parallel = job.tasks > 1
    name = program_of(job, programs)
    member = parallel and name != "eatcpu"  # eatcpu sends no messages
    return program_spec(
        name,
        units_per_core_s=units_per_core_s,
        cpu_cores=cores,
        work_s=run_wall_s,
        iteration_s=programs.iteration_s,
        seed=(seed * 1_000_003 + job.job_id) & 0x7FFF_FFFF,
        rank=task if member else 0,
        ranks=job.tasks if member else 1,
        topology=programs.topologies[job.job_id % len(programs.topologies)],
        imbalance=programs.imbalance,
        message_bytes=programs.message_bytes,
        cpu_ns_per_unit=cpu_ns_per_unit,
        profile=programs.profile,
    )


def prepare_jobs(
    jobs: Sequence[Job],
    scenario: Scenario,
    run_tag: str,
    cpus: float,
    node_memory_mib: int,
    units_per_core_s: Callable[[Job], float],
    addresses: Iterator[str],
    *,
    cpu_ns_per_unit: float = 0.0,
    shared: bool = False,
    waits: bool = False,
    watch_s: float = 0.0,
    writes: bool = False,
) -> list[PreparedJob]:
    """Return the jobs with the guests of their tasks.

    A job of p trace seconds gets the work that its tasks do in p / `time_scale` wall seconds on dedicated nodes: each
    task uses its real CPU need of a node's `cpus` cores, at `units_per_core_s(job)` work units per second and core.
    Caps are fractions of the declared need. Each guest gets the next of `addresses`. With `cpu_ns_per_unit` a work unit
    is that CPU time, and otherwise a fixed amount of computation. Guests that are `shared` compete for all cores of a
    node, each with its CPU need as its share. With `waits` nodes record which tasks wait for which. With `watch_s`
    nodes estimate the CPU need of tasks, in windows of that length. With `writes` nodes measure at which rates tasks
    write to memory. Raises `UserError` for a task with more work units than a guest can count, and for a task whose
    real need differs from the declared need while its program uses all the CPU that it gets.
    """
    result = []
    for job in jobs:
        check_pace(job, scenario)
        check_work(job, scenario.time_scale, cpus, units_per_core_s(job))
        cores, real_cores = job.cpu_need_frac * cpus, job.real_need_frac * cpus
        rate = units_per_core_s(job)
        specs = tuple(
            GuestSpec(
                guest=f"dfrs-{run_tag}-j{job.job_id}-t{task}",
                run=run_tag,
                job=job.job_id,
                task=task,
                program=_program(
                    job, task, scenario.programs, job.run_time_s / scenario.time_scale, real_cores, rate,
                    cpu_ns_per_unit, scenario.seed,
                ),
                cpu_cores=cpus if shared else cores,
                share_cores=cores if shared else None,
                waits=waits,
                watch_s=watch_s,
                writes=writes,
                memory_mib=memory_of(job, node_memory_mib),
                address=next(addresses),
            )
            for task in range(job.tasks)
        )  # fmt: skip
        result.append(PreparedJob(job, specs, trace_s_per_unit=scenario.time_scale / (rate * real_cores)))
    return result


def check_pace(job: Job, scenario: Scenario) -> None:
    """Raise `UserError` for a job whose real need differs from the declared one, if its program uses all it gets."""
    if job.true_need_frac is not None and scenario.programs.profile is None:
        raise UserError(
            f"job {job.job_id}: true_need_frac = {job.true_need_frac:g}, and its program uses all that it gets: "
            f'expected [programs] profile = "{WHOLE}", or another one'
        )


def check_work(job: Job, time_scale: float, cpus: float, units_per_core_s: float) -> None:
    """Raise `UserError` if a task has more work units than its guest can count."""
    units = units_per_core_s * job.real_need_frac * cpus * (job.run_time_s / time_scale)
    if not units <= MOST_WORK_UNITS:
        raise UserError(
            f"job {job.job_id}: run_time_s = {job.run_time_s:g} at time_scale = {time_scale:g} and units_per_core_s = "
            f"{units_per_core_s:g} is {units:.3g} work units: expected at most {MOST_WORK_UNITS:.3g}"
        )


def check_floor(jobs: Sequence[Job], node: str, node_memory_mib: int, floor_mib: int) -> None:
    """Raise `UserError` if a task would get less memory than a guest of `node` needs."""
    least_frac = min((job.mem_req_frac for job in jobs), default=1.0)
    for job in jobs:
        check_memory(f"job {job.job_id}: mem_req_frac", job.mem_req_frac, node, node_memory_mib, floor_mib, least_frac)


def check_memory(
    what: str, frac: float, node: str, node_memory_mib: int, floor_mib: int, least_frac: float | None = None
) -> None:
    """Raise `UserError` if the fraction `frac` of a node's memory is less than a guest of `node` needs.

    `what` names the fraction in the message. `least_frac` is the smallest fraction for which the message proposes a
    node size, by default `frac`.
    """
    memory_mib = _part_mib(frac, node_memory_mib)
    if memory_mib < floor_mib:
        raise UserError(
            f"{what} = {frac:g} of a node's {node_memory_mib} MiB is {memory_mib} MiB; a guest on {node} needs at "
            f"least {floor_mib} MiB: expected memory_mib >= {math.ceil(floor_mib / (least_frac or frac))}"
        )


def check_images(nodes: Mapping[str, NodeFacts]) -> None:
    """Raise `UserError` unless each node (facts by name) can restore the images that the others save."""
    kinds: dict[str, list[str]] = {}
    for node, facts in nodes.items():
        kinds.setdefault(_image_kind(facts), []).append(node)
    if len(kinds) > 1:
        told = "; ".join(f"{kind} on {', '.join(names)}" for kind, names in sorted(kinds.items()))
        raise UserError(
            f"nodes that cannot restore images of other nodes: images of kind {told}: expected one kind in a lab, "
            "which the options of their drivers may choose"
        )


def _image_kind(facts: NodeFacts) -> str:
    """Return the kind of a node's images; agents of earlier releases report the kind only if there is a choice."""
    told = [word.removeprefix("save:") for word in facts.capabilities if word.startswith("save:")]
    if told or "save" not in facts.capabilities:
        return told[0] if told else "none"
    return traits_in(facts).hypervisor or "program"
