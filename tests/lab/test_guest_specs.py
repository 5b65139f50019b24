"""Work, workers and caps of guests, computed in one place."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from testbed.bus.messages import GuestSpec
from testbed.lab.guest_specs import cap_at, program_spec, whole_cores

CORES = st.floats(0.01, 64.0)


@given(CORES)
def test_workers_can_use_all_cores_and_no_more_are_there_than_needed(cpu_cores: float) -> None:
    assert whole_cores(cpu_cores) >= cpu_cores - 1e-6
    assert whole_cores(cpu_cores) < cpu_cores + 1.0


@given(st.integers(1, 64), st.floats(-1e-10, 1e-10))
def test_rounding_of_a_computed_need_adds_no_worker(cores: int, off: float) -> None:
    assert whole_cores(cores + off) == cores


@given(st.floats(1.0, 1e9), CORES, st.floats(0.01, 1e6), st.floats(0.001, 10.0))
def test_work_takes_as_long_as_was_asked(rate: float, cpu_cores: float, work_s: float, iteration_s: float) -> None:
    spec = program_spec(
        "eatcpu", units_per_core_s=rate, cpu_cores=cpu_cores, work_s=work_s, iteration_s=iteration_s, seed=1
    )
    units = rate * cpu_cores * work_s
    assert units <= spec.work_units <= max(1.0, units + 1.0)
    assert 1 <= spec.units_per_iteration <= spec.work_units
    iterations = math.ceil(spec.work_units / spec.units_per_iteration)
    assert iterations <= max(1, round(work_s / iteration_s))


@given(CORES, st.floats(0.0, 1.0))
def test_a_cap_is_the_yields_part_of_what_a_task_can_use(cpu_cores: float, yield_frac: float) -> None:
    program = program_spec("eatcpu", units_per_core_s=1.0, cpu_cores=cpu_cores, work_s=1.0, iteration_s=1.0, seed=1)
    spec = GuestSpec(guest="g", run="r", job=1, task=0, program=program, cpu_cores=cpu_cores, memory_mib=64)
    assert cap_at(spec, yield_frac) == cpu_cores * yield_frac
    assert cap_at(spec, 1.0) == cpu_cores
