"""One go at a campaign: what is left to do is done, and kept unit by unit."""

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
        """A unit has ended and is kept."""


@dataclass(frozen=True, slots=True)
class Place:
    """The executor of units: on the Dask cluster of a scheduler, or in `processes` on this machine; 1 is this one."""

    processes: int
    scheduler: str | None = None

    def work(self, units: Iterable[Unit], code: str, begin: Begin) -> Generator[UnitResult, None, None]:
        """Do the units there, and yield their results as they come."""
        if self.scheduler is not None:
            return work_on_cluster(units, code, begin, self.scheduler)
        if self.processes == 1:
            return work_here(units, code, begin)
        return work_in_processes(units, code, begin, self.processes)


def run_units(units: Iterable[Unit], code: str, sweep: Sweep, place: Place, listener: Listener) -> None:
    """Do all units and keep each as it ends; what interrupts it leaves what has ended, and no halves."""
    with closing(place.work(units, code, lambda unit: sweep.begin(unit.name))) as results:
        for result in results:
            sweep.end(result)
            listener.ended(result)


def must_compile(plan: Plan) -> bool:
    """Whether kernels that the campaign needs are not in the user's cache of machine code yet."""
    from testbed.scheduling.bound.max_stretch import COMPILED_FROM_JOBS  # noqa: PLC0415  # numpy and kernels: a listing or a redrawing does without
    from testbed.scheduling.bound.max_stretch import will_compile as bound_will_compile  # noqa: PLC0415  # numpy and kernels: a listing or a redrawing does without
    from testbed.scheduling.simulation.named import named  # noqa: PLC0415  # numpy and kernels: a listing or a redrawing does without
    from testbed.scheduling.simulation.simulate import must_compile as loop_must_compile  # noqa: PLC0415  # numpy and kernels: a listing or a redrawing does without

    if plan.sets.campaign.bounds and bound_will_compile(COMPILED_FROM_JOBS):
        return True
    return any(loop_must_compile(named(setting.policy).loop) for setting in plan.settings)


def compile_kernels(plan: Plan) -> None:
    """Run every loop once on a small trace, so that processes that come find machine code in the cache."""
    from testbed.scheduling.bound.max_stretch import COMPILED_FROM_JOBS, bound  # noqa: PLC0415  # numpy and kernels: a listing or a redrawing does without
    from testbed.scheduling.simulation.named import named  # noqa: PLC0415  # numpy and kernels: a listing or a redrawing does without
    from testbed.scheduling.simulation.simulate import must_compile as loop_must_compile  # noqa: PLC0415  # numpy and kernels: a listing or a redrawing does without
    from testbed.scheduling.workload.synthetic import synthetic_trace  # noqa: PLC0415  # numpy and kernels: a listing or a redrawing does without

    jobs = synthetic_trace(128, COMPILED_FROM_JOBS, 1)
    by_loop = {each.loop: each for each in (named(setting.policy) for setting in plan.settings)}
    for loop, each in by_loop.items():
        if loop_must_compile(loop):
            each.simulate(jobs, 128)
    for kind in plan.sets.campaign.bounds:
        bound(jobs, 128, kind=kind)
