"""Execution of one unit of work by a worker, from its trace to its figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from testbed.errors import RunError, TestbedError
from testbed.scheduling.campaign.digests import code_version
from testbed.scheduling.campaign.plan import Simulation, Unit
from testbed.scheduling.workload.jobs import Job

_loaded: set[Callable[..., object]] = set()  # loops whose machine code this process has loaded


class Fault(msgspec.Struct, frozen=True):
    """A failed simulation or bound, with its error."""

    key: str
    what: str  # the policy, or the bound
    error: str


class UnitResult(msgspec.Struct, frozen=True):
    """The result of a unit: measures by simulation key, bounds by key, and failures."""

    unit: str
    label: str
    code: str
    measures: dict[str, dict[str, float | int | None]]
    bounds: dict[str, float]
    faults: list[Fault]


def do_unit(unit: Unit, code: str) -> UnitResult:
    """Simulate a unit and return its figures; `code` is the version that the campaign expects.

    An error of one simulation does not affect the others. Raises RunError when this process has another version.
    """
    if code_version() != code:
        raise RunError(f"this worker has version {code_version()} of the code, the campaign {code}")
    measures: dict[str, dict[str, float | int | None]] = {}
    bounds: dict[str, float] = {}
    faults: list[Fault] = []
    try:
        jobs = unit.recipe.make()
    except TestbedError as error:
        return failed(unit, code, f"trace: {error}")
    for simulation in unit.simulations:
        try:
            measures[simulation.key] = _simulate(simulation, unit, jobs)
        except (TestbedError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            faults.append(Fault(simulation.key, simulation.setting.policy, _text(error)))
    for key, kind in unit.bounds:
        from testbed.scheduling.bound.max_stretch import bound  # noqa: PLC0415  # loaded only by workers that use it

        try:
            bounds[key] = float(bound(jobs, unit.recipe.nodes, unit.tau_s, kind))
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            faults.append(Fault(key, f"bound {kind}", _text(error)))
    return UnitResult(unit.name, unit.label, code, measures, bounds, faults)


def failed(unit: Unit, code: str, why: str) -> UnitResult:
    """Return the result of a unit that failed as a whole."""
    faults = [Fault(one.key, one.setting.policy, why) for one in unit.simulations]
    faults += [Fault(key, f"bound {kind}", why) for key, kind in unit.bounds]
    return UnitResult(unit.name, unit.label, code, {}, {}, faults)


def _simulate(simulation: Simulation, unit: Unit, jobs: list[Job]) -> dict[str, Any]:
    from testbed.scheduling.policies.configuration import DEFAULT_PERIOD_S  # noqa: PLC0415  # loaded only by workers that use it
    from testbed.scheduling.simulation.measures import measure  # noqa: PLC0415  # loaded only by workers that use it
    from testbed.scheduling.simulation.named import named  # noqa: PLC0415  # loaded only by workers that use it

    setting = simulation.setting
    asked = named(setting.policy, DEFAULT_PERIOD_S if setting.period_s is None else setting.period_s)
    if asked.loop is not None and asked.loop not in _loaded:  # loading machine code is not part of the times
        _loaded.add(asked.loop)
        asked.simulate([Job(1, 0.0, 1, 1.0, 1.0, 1.0)], 1)
    began_s, cpu_began_s = time.perf_counter(), time.process_time()
    run = asked.simulate(jobs, unit.recipe.nodes, setting.overheads, node_memory_gb=unit.node_memory_gb)
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_began_s
    figures: dict[str, Any] = measure(run, None, unit.node_memory_gb, unit.tau_s).as_dict()
    del figures["bound"], figures["degradation"]  # from the bounds, which are computed once per trace
    return {"jobs": len(jobs), **figures, "simulation_wall_s": took_s, "simulation_cpu_s": cpu_s}


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, TestbedError) else f"{type(error).__name__}: {error}"
