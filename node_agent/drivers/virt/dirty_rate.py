"""The rates at which virtual machines write to their memory, measured by the hypervisor while they run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import Any

import libvirt

from node_agent.drivers.protocol import DriverError
from node_agent.drivers.virt.hypervisor import Hypervisor

EVERY_S = 10.0  # a measurement samples pages of a guest twice, and takes CPU time of its node
PERIOD_S = 1  # between both samples
_POLL_S = 0.2  # libvirt sends no event once a rate is known


class DirtyRates:
    """The last measured rate of each guest in MiB/s: of the memory that it changed within `PERIOD_S` seconds.

    Pages that change several times within the period count once, as in one round of a live migration.
    """

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._rates: dict[str, float] = {}
        self._measuring: asyncio.Task[None] | None = None
        self._next_s = 0.0

    def of(self, guest: str) -> float | None:
        """Return the last rate of a guest; None if there is none."""
        return self._rates.get(guest)

    def refresh(self, hypervisor: Hypervisor, guests: Collection[str]) -> None:
        """Measure the rates of running guests in the background, if it is time to; drop those of other guests."""
        for gone in self._rates.keys() - set(guests):
            del self._rates[gone]
        loop = asyncio.get_running_loop()
        if not guests or loop.time() < self._next_s or (self._measuring is not None and not self._measuring.done()):
            return
        self._next_s = loop.time() + EVERY_S
        self._measuring = loop.create_task(self._measure(hypervisor, tuple(guests)), name="dirty rates")

    async def _measure(self, hypervisor: Hypervisor, guests: Collection[str]) -> None:
        await asyncio.gather(*(self._measure_one(hypervisor, guest) for guest in guests))

    async def _measure_one(self, hypervisor: Hypervisor, guest: str) -> None:
        with contextlib.suppress(DriverError):  # it is gone, is being saved, or its hypervisor measures no rates
            await hypervisor.on_domain(guest, self._deadline_s, lambda domain: domain.startDirtyRateCalc(PERIOD_S))
            await asyncio.sleep(PERIOD_S)
            with contextlib.suppress(TimeoutError):  # the rate stays as it was
                async with asyncio.timeout(self._deadline_s):
                    self._rates[guest] = await self._result(hypervisor, guest)

    async def _result(self, hypervisor: Hypervisor, guest: str) -> float:
        while True:
            found = await hypervisor.on_domain(guest, self._deadline_s, _measured)
            if found is not None:
                return found
            await asyncio.sleep(_POLL_S)

    async def settled(self) -> None:
        """Wait until no measurement is in progress."""
        if self._measuring is not None:
            await asyncio.wait([self._measuring])

    async def close(self) -> None:
        """End a measurement in progress."""
        if self._measuring is not None:
            self._measuring.cancel()
            await asyncio.gather(self._measuring, return_exceptions=True)
            self._measuring = None
        self._rates.clear()


def _measured(domain: Any) -> float | None:
    """Return the measured rate of a domain in MiB/s; None while it is not known."""
    ((_, found),) = domain.connect().domainListGetStats([domain], libvirt.VIR_DOMAIN_STATS_DIRTYRATE)
    if found.get("dirtyrate.calc_status") != libvirt.VIR_DOMAIN_DIRTYRATE_MEASURED:
        return None
    return float(found["dirtyrate.megabytes_per_second"])
