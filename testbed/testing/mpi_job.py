"""The controller's part of MPI jobs in tests of drivers: barriers of ranks, in one or several drivers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import msgspec

from node_agent.drivers.protocol import DriverEvent, Joins
from testbed.bus.messages import GuestSpec
from testbed.bus.mpi_barriers import Barriers, Entered


class _Entered(msgspec.Struct):
    """The detail of an event `mpi-barrier`."""

    number: int
    keys: dict[str, str]


class MpiJob:
    """One life of a job: `hear` processes the events of its guests, `join` starts their ranks."""

    def __init__(self, members: Sequence[tuple[Joins, GuestSpec]]) -> None:
        self.session = os.urandom(8).hex()
        self.barriers = Barriers(len(members))
        self._members = {spec.guest: (driver, spec) for driver, spec in members}
        self._passing: set[asyncio.Task[None]] = set()

    def hear(self, driver_event: DriverEvent) -> None:
        """Process an event `mpi-barrier`: enter the barrier, and let the ranks pass once all have entered."""
        if driver_event.guest not in self._members or driver_event.detail["session"] != self.session:
            return
        detail = msgspec.convert(driver_event.detail, _Entered)
        rank, number = self._members[driver_event.guest][1].program.rank, detail.number
        entered = self.barriers.enter(rank, number, detail.keys)
        if entered is Entered.WAITS:
            return
        guests = [driver_event.guest] if entered is Entered.AGAIN else list(self._members)
        task = asyncio.get_running_loop().create_task(self._pass(guests, number))
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    def moved(self, guest: str, driver: Joins) -> None:
        """Record that a guest is on another node, with this driver."""
        self._members[guest] = driver, self._members[guest][1]

    async def _pass(self, guests: Sequence[str], number: int) -> None:
        for guest in guests:
            await self._members[guest][0].mpi_pass(guest, self.session, number, self.barriers.keys, last=True)

    async def join(self) -> None:
        """Start all ranks; return once they have allocated their memory."""
        await asyncio.gather(*(driver.mpi_join(guest, self.session) for guest, (driver, _) in self._members.items()))
