"""Python programs on the node itself: like this driver's guests, except for their memory and their cap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from node_agent.drivers.native import NativeBarriers, RankProgress, measure, rank_spec
from node_agent.drivers.procs.environment import environment, program_argv
from node_agent.drivers.procs.guest import ProcessGuest
from node_agent.drivers.procs.job import join_job
from node_agent.drivers.protocol import DriverError, DriverEvent, NativeReport
from testbed.bus.messages import MPI_BARRIER, GuestSpec, ProgramSpec

_RESERVED_MIB = 1024  # hardly any of it is touched; a program's own arrays must fit

Make = Callable[[GuestSpec, float, Callable[[DriverEvent], None]], ProcessGuest]


async def run_native(
    program: ProgramSpec, seconds: float, cap_cores: float, name: str, make: Make, address: str
) -> NativeReport:
    """See `Natives.native`. `make(spec, cap_cores, tell)` makes a guest that is not registered elsewhere."""
    ended: dict[str, str] = {}

    barriers = NativeBarriers(program.ranks)

    def hear(driver_event: DriverEvent) -> None:
        if driver_event.event == MPI_BARRIER:
            barriers.enter(names.index(driver_event.guest), driver_event.detail)
        elif driver_event.event == "done":
            ended[driver_event.guest] = f"its {program.work_units} work units were done before {seconds:g} s passed"
        elif driver_event.event == "failed":
            ended[driver_event.guest] = str(driver_event.detail["reason"])

    def read(rank: ProcessGuest) -> RankProgress | None:
        if rank.gone.done():
            raise DriverError(f"native: rank {rank.spec.task}: {ended.get(rank.spec.guest, 'it has ended')}")
        return rank.told

    names = [f"{name}-{rank}" for rank in range(program.ranks)]
    specs = [rank_spec(guest, program, rank, _RESERVED_MIB) for rank, guest in enumerate(names)]
    ranks: list[ProcessGuest] = []
    try:
        for spec in specs:
            ranks.append(make(spec, cap_cores or program.workers, hear))
            await ranks[-1].listen()
        if len(ranks) == 1:
            await ranks[0].enter(program_argv(), environment(ranks[0].control))
            await ranks[0].made()
        else:
            barriers.passes = [rank.rank.pass_barrier for rank in ranks]
            await asyncio.gather(*(join_job(rank, barriers.session, address) for rank in ranks))
        return await measure([partial(read, rank) for rank in ranks], seconds)
    finally:
        await asyncio.shield(asyncio.gather(*(rank.stop() for rank in ranks)))
