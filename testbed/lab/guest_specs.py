"""Computes specifications of guests: the work of the program, its number of workers, and the cap at a yield."""

from __future__ import annotations

import math

from testbed.bus.messages import GuestSpec, ProgramSpec
from testbed.bus.need_profile import WHOLE

_ROUNDING_CORES = 1e-9  # a computed CPU need may exceed a whole number of cores by a rounding error


def whole_cores(cpu_cores: float) -> int:
    """Return the number of whole cores on which a guest can use `cpu_cores`, at least one."""
    return max(1, math.ceil(cpu_cores - _ROUNDING_CORES))


def cap_at(spec: GuestSpec, yield_frac: float) -> float:
    """Return the CPU cap of a guest at a yield, in cores."""
    return spec.cpu_cores * yield_frac


def program_spec(
    name: str,
    *,
    units_per_core_s: float,
    cpu_cores: float,
    work_s: float,
    iteration_s: float,
    seed: int,
    rank: int = 0,
    ranks: int = 1,
    topology: str = "ring",
    imbalance: str = "uniform",
    message_bytes: int = 4096,
    touched_frac: float = 1.0,
    cpu_ns_per_unit: float = 0.0,
    profile: str | None = None,
) -> ProgramSpec:
    """Return a program whose work takes `work_s` seconds of `cpu_cores` cores, in iterations of about `iteration_s`.

    `units_per_core_s` is the number of work units of a core per second. With a `profile` the program never needs more
    than these cores, and less in some phases (`testbed.bus.need_profile`).
    """
    work_units = max(1, math.ceil(units_per_core_s * cpu_cores * work_s))
    iterations = max(1, round(work_s / iteration_s))
    units = math.ceil(work_units / iterations)
    return ProgramSpec(
        name=name,
        work_units=work_units,
        units_per_iteration=units,
        seed=seed,
        workers=whole_cores(cpu_cores),
        rank=rank,
        ranks=ranks,
        topology=topology,
        imbalance=imbalance,
        message_bytes=message_bytes,
        touched_frac=touched_frac,
        cpu_ns_per_unit=cpu_ns_per_unit,
        pace_ns=0 if profile is None else round(1e9 * units / (units_per_core_s * cpu_cores)),
        profile=profile or WHOLE,
    )
