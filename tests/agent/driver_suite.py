"""What a suite for every driver stands on: one driver's node, endless and throttled guests, and jobs of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from support.live import ENDLESS_UNITS, HANG_S, THROTTLED_CORES, until
from support.mpi_ranks import MpiJob

from node_agent.drivers.protocol import Driver, DriverFacts, Happening, NodeBudget, Reading
from testbed.bus.messages import MPI_BARRIER, GuestSpec, ProgramSpec

_POLL_S = 0.02


@dataclass
class Node:
    """A driver that was opened, and all that its guests did."""

    driver: Driver
    budget: NodeBudget
    facts: DriverFacts | None = None
    happenings: list[Happening] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    mpi_jobs: list[MpiJob] = field(default_factory=list)

    async def open(self) -> None:
        self.facts = await self.driver.open(self.budget, self.hear)

    def hear(self, happening: Happening) -> None:
        if happening.event == MPI_BARRIER:
            for job in self.mpi_jobs:
                job.hear(happening)
            return
        self.happenings.append(happening)
        self.news.set()

    def events(self, guest: str) -> list[str]:
        return [happening.event for happening in self.happenings if happening.guest == guest]

    async def until(self, guest: str, event: str) -> Happening:
        """Wait for an event of a guest; forget it and what the guest did before it."""
        async with asyncio.timeout(HANG_S):
            while event not in self.events(guest):
                assert not {"done", "failed"} & set(self.events(guest)), (event, self.happenings)
                self.news.clear()
                await self.news.wait()
        own = [happening for happening in self.happenings if happening.guest == guest]
        past = own[: [happening.event for happening in own].index(event) + 1]
        self.happenings = [happening for happening in self.happenings if happening not in past]
        return past[-1]

    def state(self, guest: str) -> str | None:
        return next((sample.state for sample in self.driver.sample() if sample.guest == guest), None)

    async def cpu_s(self, guest: str) -> float:
        """Return the CPU time that a guest has used by now."""
        await self.driver.refresh()
        return next(sample.cpu_s for sample in self.driver.sample() if sample.guest == guest)

    async def work(self, guest: str, cpu_s: float) -> float:
        """Wait until a guest has used at least so much more CPU time; return how much."""
        async with asyncio.timeout(HANG_S):
            begin_s = await self.cpu_s(guest)
            while (used_s := await self.cpu_s(guest) - begin_s) < cpu_s:  # noqa: ASYNC110  # a counter sets no event
                await asyncio.sleep(_POLL_S)
        return used_s

    async def rate(self, guest: str, cpu_s: float) -> float:
        """Return the work units that a guest does in a second of its CPU time, measured for at least `cpu_s`."""
        meter = self.driver.meter(guest)

        async def told() -> Reading:
            """Return a reading from when the guest has just sent its work units."""
            units = meter().units
            await until(lambda: meter().units != units, f"progress of guest {guest}")
            return meter()

        begin = await told()
        await until(lambda: meter().cpu_s >= begin.cpu_s + cpu_s, f"CPU time of guest {guest}")
        end = await told()
        return (end.units - begin.units) / (end.cpu_s - begin.cpu_s)


class DriverSuite:
    """Inherit, say how a driver is made and how a coroutine is run, and how much work takes about a second.

    A test that acts on a guest gives it endless work, or `throttled_s` seconds of work that it starts throttled: such
    a guest is at work for longer than any test takes, until `finish` raises its cap.
    """

    leaves = True  # guests outlive an agent that is killed
    whole = False  # an image holds the guest with all that runs in it
    lazy = True  # memory that a guest did not touch is neither occupied nor saved
    node_memory_mib = 4096
    memory_mib = 64
    ballast_mib = 128  # added where that is to be seen
    units_a_second = 10_000
    node_cpus = 2.0
    units_per_iteration = 100
    watched_frac = 0.25  # of the samples of a watch that an idle machine takes at least
    throttled_cores = THROTTLED_CORES
    throttled_s = 4.0  # at that cap minutes pass until such work is done

    def make(self) -> Driver:
        raise NotImplementedError

    def make_again(self, node: Node) -> Driver:
        """Return a driver as that of a node, not open."""
        del node
        return self.make()

    def run(self, main: Coroutine[None, None, None]) -> None:
        asyncio.run(main)

    def nodes(self, tmp_path: Path, count: int) -> list[Node]:
        return [
            Node(
                self.make(),
                NodeBudget(
                    f"n{index}",
                    self.node_cpus,
                    self.node_memory_mib,
                    tmp_path / f"s{index}",
                    tmp_path / f"images{index}",
                    "127.0.0.1",
                    "dfrs-t-",
                ),
            )
            for index in range(count)
        ]

    def on_nodes(self, tmp_path: Path, count: int, scenario: Callable[..., Coroutine[None, None, None]]) -> None:
        """Run a scenario on fresh nodes, and see that closing them leaves no guest."""

        async def main() -> None:
            nodes = self.nodes(tmp_path, count)
            try:
                for node in nodes:
                    await node.open()
                    node.budget.image_dir.mkdir(parents=True, exist_ok=True)
                await scenario(*nodes)
            finally:
                for node in nodes:
                    await node.driver.close()
            assert [node.driver.sample() for node in nodes] == [[] for _ in nodes]

        self.run(main())

    def spec(self, guest: str, seconds: float | None = None, **program: object) -> GuestSpec:
        """Return a guest with about so many seconds of work at full speed; without `seconds` its work has no end."""
        work_units = ENDLESS_UNITS if seconds is None else max(1, round(seconds * self.units_a_second))
        merged = {"work_units": work_units, "units_per_iteration": self.units_per_iteration, "seed": 7, **program}
        return GuestSpec(
            guest=guest, run="t", job=1, task=int(str(merged.get("rank", 0))), cpu_cores=1.0,
            memory_mib=self.memory_mib, program=msgspec.convert({"name": "eatcpu", **merged}, ProgramSpec),
            address=f"10.77.1.{sum(guest.encode()) % 256}/16",
        )  # fmt: skip

    def job(self, ranks: int, seconds: float | None = None, **program: object) -> list[GuestSpec]:
        return [
            self.spec(f"m{rank}", seconds, name="patterns", rank=rank, ranks=ranks, **program) for rank in range(ranks)
        ]

    async def throttle(self, node: Node, spec: GuestSpec, image: Path | None = None) -> None:
        """Start a guest under a cap that keeps its work from its end until `finish`."""
        await node.driver.start(spec, self.throttled_cores, image)

    async def finish(self, *members: tuple[Node, GuestSpec]) -> list[object]:
        """Raise the caps of throttled guests, and return the checksums that they end with."""
        for node, spec in members:
            await node.driver.set_cap(spec.guest, spec.cpu_cores)
        return await self.checksums(*members)

    async def checksums(self, *members: tuple[Node, GuestSpec]) -> list[object]:
        return [(await node.until(spec.guest, "done")).detail["checksum"] for node, spec in members]

    async def straight(self, node: Node, spec: GuestSpec) -> object:
        """Return the checksum that a guest ends with if nothing is done to it."""
        await node.driver.start(spec, 1.0, None)
        return (await self.checksums((node, spec)))[0]

    async def start_job(
        self, members: list[tuple[Node, GuestSpec]], images: dict[str, Path] | None = None, cap_cores: float = 1.0
    ) -> None:
        for node, spec in members:
            await node.driver.start(spec, cap_cores, images[spec.guest] if images else None)
        if images and self.whole:
            await asyncio.gather(*(node.driver.release(spec.guest) for node, spec in members))
            return
        job = MpiJob([(node.driver, spec) for node, spec in members])
        for node in {id(node): node for node, _ in members}.values():
            node.mpi_jobs.append(job)
        await job.join()

    async def save_job(self, members: list[tuple[Node, GuestSpec]]) -> dict[str, Path]:
        points = await asyncio.gather(*(node.driver.hold(spec.guest) for node, spec in members))
        together = max((point for point in points if point is not None), default=None)
        images = {spec.guest: node.budget.image_dir / f"{spec.guest}.img" for node, spec in members}
        await asyncio.gather(*(node.driver.save(spec.guest, together, images[spec.guest]) for node, spec in members))
        return images
