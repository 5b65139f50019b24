"""The base class of driver tests: settings, nodes, endless and throttled guests, and MPI jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from node_agent.drivers.protocol import Driver, DriverError, NodeBudget
from testbed.bus.messages import GuestSpec, ProgramSpec
from testbed.testing.accuracy import NOT_JUDGED, Accuracy, NotJudgedWarning
from testbed.testing.live import ENDLESS_UNITS, THROTTLED_CORES
from testbed.testing.mpi_job import MpiJob
from testbed.testing.nodes import Node

Members = Sequence[tuple[Node, GuestSpec]]


class DriverSuite:
    """Settings to override, and common steps of a driver's tests.

    A test that acts on a guest gives it endless work, or `throttled_s` seconds of work under a very low cap. Such a
    guest works for longer than any test takes, until `finish` raises its cap.
    """

    lacks: frozenset[str] = frozenset()
    """Abilities of the driver's class that are not available where the tests run: `save`, `live`, `mpi`, `native`."""
    leaves = True
    """Guests outlive an agent that is killed, until `sweep` removes them."""
    lazy = True
    """Memory that a guest has not touched is neither resident nor saved."""
    node_cpus = 2.0
    node_memory_mib = 4096
    memory_mib = 64
    """Memory of a guest."""
    ballast_mib = 128
    """Additional memory of guests in tests that compare memory."""
    units_a_second = 10_000
    """Work units that a guest does in about a second; a number within a factor of ten is enough."""
    units_per_iteration = 100
    watched_frac = 0.25
    """The least fraction of a watch's planned samples that an idle machine takes."""
    least_calibrated_frac = 0.25
    """The least ratio of the calibrated rate to the rate of a guest, however busy the machine is."""
    throttled_cores = THROTTLED_CORES
    throttled_s = 4.0
    """Seconds of work that take minutes under the cap `throttled_cores`."""

    def make(self) -> Driver:
        """Return a new driver that is not open yet."""
        raise NotImplementedError(f"{type(self).__name__}.make: expected it to return a new driver")

    def make_again(self, node: Node) -> Driver:
        """Return another driver for a node, not open yet, as a restarted agent would create it."""
        del node
        return self.make()

    def run(self, main: Coroutine[None, None, None]) -> None:
        """Run a test to its end."""
        asyncio.run(main)

    @pytest.fixture
    def accuracy(self, request: pytest.FixtureRequest) -> Iterator[Accuracy]:
        """Yield the accuracy checks: they fail the test on an idle machine, and only warn on a busy one."""
        found = Accuracy(request.node.nodeid)
        yield found
        for line in found.not_judged:
            request.node.user_properties.append((NOT_JUDGED, line))
            request.node.warn(NotJudgedWarning(line))

    def nodes(self, tmp_path: Path, count: int) -> list[Node]:
        """Return nodes with this driver that are not open yet."""
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

    def on_nodes(
        self, tmp_path: Path, count: int, scenario: Callable[..., Coroutine[None, None, None]], *needs: str
    ) -> None:
        """Run a scenario on fresh nodes, and check that no guest is left after they are closed.

        The test is skipped if the driver lacks an ability in `needs`.
        """

        async def main() -> None:
            nodes = self.nodes(tmp_path, count)
            try:
                for node in nodes:
                    await node.open()
                    node.budget.image_dir.mkdir(parents=True, exist_ok=True)
                if lacking := [(node, need) for node in nodes for need in needs if need not in node.capabilities]:
                    node, need = lacking[0]
                    why = f": {node.facts.lacks[need]}" if need in node.facts.lacks else ""
                    pytest.skip(f"driver {node.driver.name} lacks the ability {need}{why}")
                await scenario(*nodes)
            finally:
                for node in nodes:
                    await node.driver.close()
            assert [node.driver.sample() for node in nodes] == [[] for _ in nodes]

        self.run(main())

    def spec(self, guest: str, seconds: float | None = None, **program: object) -> GuestSpec:
        """Return a guest with about `seconds` of work at full speed; without `seconds` its work has no end."""
        work_units = ENDLESS_UNITS if seconds is None else max(1, round(seconds * self.units_a_second))
        merged = {"work_units": work_units, "units_per_iteration": self.units_per_iteration, "seed": 7, **program}
        return GuestSpec(
            guest=guest, run="t", job=1, task=int(str(merged.get("rank", 0))), cpu_cores=1.0,
            memory_mib=self.memory_mib, program=msgspec.convert({"name": "eatcpu", **merged}, ProgramSpec),
            address=f"10.77.1.{sum(guest.encode()) % 256}/16",
        )  # fmt: skip

    def job(self, ranks: int, seconds: float | None = None, **program: object) -> list[GuestSpec]:
        """Return the members of an MPI job."""
        return [
            self.spec(f"m{rank}", seconds, name="patterns", rank=rank, ranks=ranks, **program) for rank in range(ranks)
        ]

    async def start(self, node: Node, spec: GuestSpec, cap_cores: float, image: Path | None = None) -> None:
        """Start a guest, or restore it from an image; a guest from a `whole` image is then held."""
        if image is None:
            await node.driver.start(spec, cap_cores)
        else:
            await node.saving.restore(spec, cap_cores, image)

    async def throttle(self, node: Node, spec: GuestSpec, image: Path | None = None) -> None:
        """Start a guest under a cap so low that its work cannot end before `finish`."""
        await self.start(node, spec, self.throttled_cores, image)

    async def finish(self, *members: tuple[Node, GuestSpec]) -> list[object]:
        """Raise the caps of throttled guests, and return their final checksums; some may have ended already."""
        for node, spec in members:
            try:
                await node.driver.set_cap(spec.guest, spec.cpu_cores)
            except DriverError:
                if "done" not in node.events(spec.guest):
                    raise
        return await self.checksums(*members)

    async def checksums(self, *members: tuple[Node, GuestSpec]) -> list[object]:
        """Return the guests' final checksums; None for a driver that reports none."""
        return [(await node.until(spec.guest, "done")).detail.get("checksum") for node, spec in members]

    async def straight(self, node: Node, spec: GuestSpec) -> object:
        """Run a guest to its end without any operation on it; return its final checksum."""
        await node.driver.start(spec, 1.0)
        return (await self.checksums((node, spec)))[0]

    async def start_job(
        self, members: Members, images: Mapping[str, Path] | None = None, cap_cores: float = 1.0
    ) -> None:
        """Start all members of an MPI job, or restore them from their images, and start their ranks."""
        for node, spec in members:
            await self.start(node, spec, cap_cores, images[spec.guest] if images else None)
        if images and members[0][0].whole:
            await asyncio.gather(*(node.saving.release(spec.guest) for node, spec in members))
            return
        job = MpiJob([(node.joining, spec) for node, spec in members])
        for node in {id(node): node for node, _ in members}.values():
            node.mpi_jobs.append(job)
        await job.join()

    async def save_job(self, members: Members) -> dict[str, Path]:
        """Hold and save all members of an MPI job together; return their images."""
        points = await asyncio.gather(*(node.saving.hold(spec.guest) for node, spec in members))
        together = max((point for point in points if point is not None), default=None)
        images = {spec.guest: node.budget.image_dir / f"{spec.guest}.img" for node, spec in members}
        await asyncio.gather(*(node.saving.save(spec.guest, together, images[spec.guest]) for node, spec in members))
        return images
