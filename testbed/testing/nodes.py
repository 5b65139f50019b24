"""A node for tests of drivers: it calls the driver as an agent does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import msgspec

from node_agent.abilities import Abilities, meter_of
from node_agent.drivers.protocol import (
    Driver,
    DriverEvent,
    DriverFacts,
    Meter,
    Meters,
    NodeBudget,
    Reading,
)
from node_agent.watch import watch
from testbed.bus.messages import MPI_BARRIER, Watch
from testbed.lab.outcomes import Watched
from testbed.testing.live import HANG_S, until
from testbed.testing.mpi_job import MpiJob

_POLL_S = 0.02


@dataclass
class Node(Abilities):
    """A driver, and the events of its guests."""

    driver: Driver
    budget: NodeBudget
    facts: DriverFacts = field(init=False)
    capabilities: tuple[str, ...] = ()
    driver_events: list[DriverEvent] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    mpi_jobs: list[MpiJob] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.driver)

    async def open(self) -> None:
        """Open the driver, as an agent does."""
        self.facts = await self.driver.open(self.budget, self.hear)
        self.capabilities = self.found(self.facts)

    @property
    def whole(self) -> bool:
        """Whether images hold complete guests, with all processes in them."""
        return "whole" in self.capabilities

    def meter(self, guest: str) -> Meter:
        """Return a function that reads a guest's usage, as an agent does."""
        return meter_of(self.driver, guest)

    async def watch(self, action: Watch) -> Watched:
        """Watch one guest, as an agent does."""
        in_loop = self.driver.traits.simulated or not isinstance(self.driver, Meters)
        meters = {guest: self.meter(guest) for guest in action.guests}
        return msgspec.convert(await watch(action, meters, self.driver.set_cap, in_loop=in_loop), Watched)

    def hear(self, driver_event: DriverEvent) -> None:
        """Process an event of a guest."""
        if driver_event.event == MPI_BARRIER:
            for job in self.mpi_jobs:
                job.hear(driver_event)
            return
        self.driver_events.append(driver_event)
        self.news.set()

    def events(self, guest: str) -> list[str]:
        """Return the events of a guest since `until` returned for it."""
        return [each.event for each in self.driver_events if each.guest == guest]

    async def until(self, guest: str, event: str) -> DriverEvent:
        """Wait for an event of a guest; forget it and the guest's earlier events."""
        async with asyncio.timeout(HANG_S):
            while event not in self.events(guest):
                assert not {"done", "failed"} & set(self.events(guest)), (event, self.driver_events)
                self.news.clear()
                await self.news.wait()
        own = [each for each in self.driver_events if each.guest == guest]
        past = own[: [each.event for each in own].index(event) + 1]
        self.driver_events = [each for each in self.driver_events if each not in past]
        return past[-1]

    def state(self, guest: str) -> str | None:
        """Return the state of a guest, None if it does not exist."""
        return next((sample.state for sample in self.driver.sample() if sample.guest == guest), None)

    async def caps(self, guest: str) -> tuple[object, object]:
        """Return the cap in force of a guest, and the cap that it should have."""
        await self.driver.refresh()
        sample = next(sample for sample in self.driver.sample() if sample.guest == guest)
        return sample.cap_cores, sample.wanted_cores

    async def share(self, guest: str) -> float | None:
        """Return the share in force of a guest, None if it has none."""
        await self.driver.refresh()
        return next(sample.share_cores for sample in self.driver.sample() if sample.guest == guest)

    def guessed_waits_s(self, guest: str) -> tuple[float, ...]:
        """Return the present estimate of the seconds that a guest has waited for each rank."""
        return next(sample.guessed_waits_s for sample in self.driver.sample() if sample.guest == guest)

    async def cpu_s(self, guest: str) -> float:
        """Return the CPU time in seconds that a guest has used so far."""
        await self.driver.refresh()
        return next(sample.cpu_s for sample in self.driver.sample() if sample.guest == guest)

    async def work(self, guest: str, cpu_s: float) -> float:
        """Wait until a guest has used at least `cpu_s` more seconds of CPU time; return the amount used."""
        async with asyncio.timeout(HANG_S):
            begin_s = await self.cpu_s(guest)
            while (used_s := await self.cpu_s(guest) - begin_s) < cpu_s:  # noqa: ASYNC110  # a counter sets no event
                await asyncio.sleep(_POLL_S)
        return used_s

    async def rate(self, guest: str, cpu_s: float) -> float:
        """Return a guest's work units per second of its CPU time, measured over at least `cpu_s` of CPU time."""
        meter = self.meter(guest)

        async def told() -> Reading:
            """Return a reading taken just after the guest has sent its work units."""
            units = meter().units
            await until(lambda: meter().units != units, f"progress of guest {guest}")
            return meter()

        begin = await told()
        await until(lambda: meter().cpu_s >= begin.cpu_s + cpu_s, f"CPU time of guest {guest}")
        end = await told()
        return (end.units - begin.units) / (end.cpu_s - begin.cpu_s)
