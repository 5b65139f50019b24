"""Execution of a campaign: runs the remaining units of work, and stores the result of each unit."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from testbed.scheduling.campaign.cluster import work_on_cluster
from testbed.scheduling.campaign.plan import Plan, Unit
from testbed.scheduling.campaign.sweep import Sweep
from testbed.scheduling.campaign.work import UnitResult
from testbed.scheduling.campaign.workers import Begin, work_here, work_in_processes


class Listener(Protocol):
    """Receives the progress of a campaign."""

    def ended(self, result: UnitResult) -> None:
        """Handle the end of a unit, whose result is stored."""


@dataclass(frozen=True, slots=True)
class Place:
    """The executor of units: the Dask cluster of a scheduler, or `processes` on this machine; 1 is this process."""

    processes: int
    scheduler: str | None = None

    def work(self, units: Iterable[Unit], code: str, begin: Begin) -> Generator[UnitResult, None, None]:
        """Execute the units, and yield their results in the order of completion."""
        if self.scheduler is not None:
            return work_on_cluster(units, code, begin, self.scheduler)
        if self.processes == 1:
            return work_here(units, code, begin)
        return work_in_processes(units, code, begin, self.processes)


def run_units(units: Iterable[Unit], code: str, sweep: Sweep, place: Place, listener: Listener) -> None:
    """Execute all units and store each as it ends; after an interruption all stored results are complete."""
    with closing(place.work(units, code, lambda unit: sweep.begin(unit.name))) as results:
        for result in results:
            sweep.end(result)
            listener.ended(result)


def must_compile(plan: Plan) -> bool:
    """Whether the campaign needs kernels whose machine code is not in the user's cache yet."""
    from testbed.scheduling.bound.max_stretch import COMPILED_FROM_JOBS  # noqa: PLC0415  # numpy and kernels, which listings and reports do not need
    from testbed.scheduling.bound.max_stretch import will_compile as bound_will_compile  # noqa: PLC0415  # numpy and kernels, which listings and reports do not need
    from testbed.scheduling.simulation.named import named  # noqa: PLC0415  # numpy and kernels, which listings and reports do not need
    from testbed.scheduling.simulation.simulate import must_compile as loop_must_compile  # noqa: PLC0415  # numpy and kernels, which listings and reports do not need

    if plan.sets.campaign.bounds and bound_will_compile(COMPILED_FROM_JOBS):
        return True
    return any(loop_must_compile(named(setting.policy).loop) for setting in plan.settings)


def compile_kernels(plan: Plan) -> None:
    """Run every loop once on a small trace, so that later processes find the machine code in the cache."""
    from testbed.scheduling.bound.max_stretch import COMPILED_FROM_JOBS, bound  # noqa: PLC0415  # numpy and kernels, which listings and reports do not need
    from testbed.scheduling.simulation.named import named  # noqa: PLC0415  # numpy and kernels, which listings and reports do not need
    from testbed.scheduling.simulation.simulate import must_compile as loop_must_compile  # noqa: PLC0415  # numpy and kernels, which listings and reports do not need
    from testbed.scheduling.workload.synthetic import synthetic_trace  # noqa: PLC0415  # numpy and kernels, which listings and reports do not need

    jobs = synthetic_trace(128, COMPILED_FROM_JOBS, 1)
    by_loop = {each.loop: each for each in (named(setting.policy) for setting in plan.settings)}
    for loop, each in by_loop.items():
        if loop_must_compile(loop):
            each.simulate(jobs, 128)
    for kind in plan.sets.campaign.bounds:
        bound(jobs, 128, kind=kind)
