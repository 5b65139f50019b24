"""Nodes of a lab in a box whose drivers are in the test's process, and guests and jobs for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from node_agent.drivers.protocol import DriverEvent, DriverFacts, MigrationReport, NodeBudget
from support.libvirt_box import destination, driver_options
from support.live import ENDLESS_UNITS, HANG_S
from testbed.bus.messages import MPI_BARRIER, GuestSpec, ProgramSpec
from testbed.testing.mpi_job import MpiJob

THROTTLED_CORES = 0.1  # at 0.02 an emulated kernel leaves no CPU time to its program
THROTTLED_UNITS = 60_000  # at that cap minutes pass until such work is done


@dataclass
class Node:
    """One node's driver in this process, and the events of its guests."""

    driver: object
    destination: object
    facts: DriverFacts
    images: Path
    driver_events: list[DriverEvent]
    news: asyncio.Event
    mpi_jobs: list[MpiJob] = field(default_factory=list)

    def hear(self, driver_event: DriverEvent) -> None:
        if driver_event.event == MPI_BARRIER:
            for job in self.mpi_jobs:
                job.hear(driver_event)
            return
        self.driver_events.append(driver_event)
        self.news.set()

    async def until(self, guest: str, *events: str) -> DriverEvent:
        """Wait for one of the events of a guest."""
        async with asyncio.timeout(HANG_S):
            while True:
                for driver_event in self.driver_events:
                    if driver_event.guest == guest and driver_event.event in events:
                        self.driver_events.remove(driver_event)
                        return driver_event
                self.news.clear()
                await self.news.wait()

    async def work(self, spec: GuestSpec, cap_cores: float = THROTTLED_CORES) -> None:
        """Start a guest, and wait for its first progress."""
        await self.driver.start(spec, cap_cores)
        await self.until(spec.guest, "progress")

    def pid(self, guest: str) -> int:
        return self.driver._guests[guest]._cap.vcpus.pid

    def part_frac(self, guest: str) -> float:
        """Return the part of the node that a guest gets while others want the rest."""
        return self.driver._guests[guest].vcpus.part_frac()

    def sample(self, guest: str):
        return next((sample for sample in self.driver.sample() if sample.guest == guest), None)


@contextlib.asynccontextmanager
async def node(lab: object, name: str, folder: Path, **options: str) -> AsyncIterator[Node]:
    from node_agent.drivers.virt.driver import LibvirtDriver

    driver = LibvirtDriver(**{**driver_options(lab, name), **options})
    images = folder / name / "images"
    there = destination(lab, name, f"t{name}")
    here = Node(driver, there, DriverFacts((), {}), images, [], asyncio.Event())

    try:
        budget = NodeBudget(f"t{name}", 1.0, 1536, folder / name, images, "127.0.0.1", "dfrs-")
        here.facts = await driver.open(budget, here.hear)
        yield here
    finally:
        await driver.close()


def on_both(lab: object, folder: Path, play: Callable[[Node, Node], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        async with node(lab, "a", folder) as one, node(lab, "b", folder) as two:
            await play(one, two)
            assert one.driver.sample() == two.driver.sample() == []

    asyncio.run(main())


def serial(work_units: int = ENDLESS_UNITS, number: int = 0, memory_mib: int = 128) -> GuestSpec:
    program = ProgramSpec(name="eatcpu", work_units=work_units, units_per_iteration=50, seed=7)
    return GuestSpec(
        guest=f"dfrs-t-j{number}-t0", run="t", job=number, task=0, program=program, cpu_cores=1.0,
        memory_mib=memory_mib, address=f"10.77.1.{number + 1}/16",
    )  # fmt: skip


def parallel(work_units: int, ranks: int, topology: str = "ring") -> list[GuestSpec]:
    base = serial(1, 1)
    return [
        msgspec.structs.replace(
            base, guest=f"dfrs-t-j1-t{rank}", task=rank, memory_mib=144, address=f"10.77.2.{rank + 1}/16",
            program=ProgramSpec(
                name="patterns", work_units=work_units, units_per_iteration=50, seed=7, rank=rank, ranks=ranks,
                topology=topology, message_bytes=5000,
            ),
        )
        for rank in range(ranks)
    ]  # fmt: skip


async def start_job(members: list[tuple[Node, GuestSpec]], cap_cores: float = 1.0) -> None:
    await asyncio.gather(*(place.driver.start(spec, cap_cores) for place, spec in members))
    await join(members)


async def join(members: list[tuple[Node, GuestSpec]]) -> None:
    """Begin the job of guests that have booted."""
    job = MpiJob([(place.driver, spec) for place, spec in members])
    for place in {id(place): place for place, _ in members}.values():
        place.mpi_jobs.append(job)
    await job.join()


async def pair_at_work(one: Node, two: Node) -> list[tuple[Node, GuestSpec]]:
    """Start a throttled job with a member on each node; returns them when both have made progress."""
    members = list(zip((one, two), parallel(THROTTLED_UNITS // 2, 2), strict=True))
    await start_job(members, THROTTLED_CORES)
    for place, spec in members:
        await place.until(spec.guest, "progress")
    return members


async def migrate(one: Node, two: Node, spec: GuestSpec, cap_cores: float) -> MigrationReport:
    report = await one.driver.migrate(spec.guest, two.destination, HANG_S, HANG_S)
    await two.driver.adopt(spec, cap_cores)
    return report


async def ends(members: list[tuple[Node, GuestSpec]]) -> list[object]:
    """Return the final checksums of guests."""
    results = []
    for place, spec in members:
        driver_event = await place.until(spec.guest, "done", "failed")
        assert driver_event.event == "done", driver_event
        assert driver_event.detail["units"] == spec.program.work_units
        results.append(driver_event.detail["checksum"])
    return results


async def finish(members: list[tuple[Node, GuestSpec]]) -> list[object]:
    """Let throttled guests work at full speed; return their final checksums."""
    for place, spec in members:
        await place.driver.set_cap(spec.guest, 1.0)
    return await ends(members)


def twin(spec: GuestSpec) -> str:
    """Return the checksum that the Python program of a task computes."""
    from node_agent.programs.expected import expected_checksum
    from node_agent.programs.task import Task

    return expected_checksum(Task.from_spec(msgspec.to_builtins(spec)))
