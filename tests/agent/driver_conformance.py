"""What every driver must do, whatever its guests are: a suite to inherit from, and one driver's node to run it on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from node_agent.drivers.protocol import Driver, DriverError, DriverFacts, Happening, NodeBudget
from node_agent.stores import ImageStores
from node_agent.watch import watch
from testbed.bus.messages import CapChange, GuestSpec, ProgramSpec, Watch


@dataclass
class Node:
    """A driver that was opened, and all that its guests did."""

    driver: Driver
    budget: NodeBudget
    within_s: float
    facts: DriverFacts | None = None
    happenings: list[Happening] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def open(self) -> None:
        self.facts = await self.driver.open(self.budget, self.hear)

    def hear(self, happening: Happening) -> None:
        self.happenings.append(happening)
        self.news.set()

    def events(self, guest: str) -> list[str]:
        return [happening.event for happening in self.happenings if happening.guest == guest]

    async def until(self, guest: str, event: str) -> Happening:
        """Wait for an event of a guest; forget it and what the guest did before it."""
        async with asyncio.timeout(self.within_s):
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


class DriverConformance:
    """Inherit, say how a driver is made and how a coroutine is run, and how much work takes about a second."""

    leaves = True  # guests outlive an agent that is killed
    whole = False  # an image holds the guest with all that runs in it
    lazy = True  # memory that a guest did not touch is neither occupied nor saved
    within_s = 30.0  # for which an event is waited for
    node_memory_mib = 4096
    memory_mib = 64
    ballast_mib = 128  # added where that is to be seen
    units_a_second = 10_000
    node_cpus = 2.0
    watched_least = 50  # samples in four seconds
    migration_work_s = 3.0  # work enough not to end during a live migration
    units_per_iteration = 100

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
                self.within_s,
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

    def spec(self, guest: str, seconds: float, **program: object) -> GuestSpec:
        work_units = max(1, round(seconds * self.units_a_second))
        merged = {"work_units": work_units, "units_per_iteration": self.units_per_iteration, "seed": 7, **program}
        return GuestSpec(
            guest=guest, run="t", job=1, task=int(str(merged.get("rank", 0))), cpu_cores=1.0,
            memory_mib=self.memory_mib, program=msgspec.convert({"name": "eatcpu", **merged}, ProgramSpec),
            address=f"10.77.1.{sum(guest.encode()) % 256}/16",
        )  # fmt: skip

    def job(self, seconds: float, ranks: int, **program: object) -> list[GuestSpec]:
        return [
            self.spec(f"m{rank}", seconds, name="patterns", rank=rank, ranks=ranks, **program) for rank in range(ranks)
        ]

    async def start_job(self, members: list[tuple[Node, GuestSpec]], images: dict[str, Path] | None = None) -> None:
        for node, spec in members:
            await node.driver.start(spec, 1.0, images[spec.guest] if images else None)
        if images and self.whole:
            await asyncio.gather(*(node.driver.release(spec.guest) for node, spec in members))
            return
        lead, first = members[0]
        hosts = {spec.guest: spec.address.partition("/")[0] for _, spec in members}
        launch = await lead.driver.mpi_open(first.guest, hosts)
        await asyncio.gather(*(node.driver.mpi_join(spec.guest, launch[spec.guest]) for node, spec in members))

    async def save_job(self, members: list[tuple[Node, GuestSpec]]) -> dict[str, Path]:
        points = await asyncio.gather(*(node.driver.hold(spec.guest) for node, spec in members))
        together = max((point for point in points if point is not None), default=None)
        images = {spec.guest: node.budget.image_dir / f"{spec.guest}.img" for node, spec in members}
        await asyncio.gather(*(node.driver.save(spec.guest, together, images[spec.guest]) for node, spec in members))
        return images

    async def checksums(self, members: list[tuple[Node, GuestSpec]]) -> list[object]:
        return [(await node.until(spec.guest, "done")).detail["checksum"] for node, spec in members]

    # --- what every driver must do

    def test_a_guest_starts_progresses_and_is_done(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            spec = self.spec("a", 0.3)
            await node.driver.start(spec, 1.0, None)
            first = await node.until("a", "progress")
            assert 0 <= int(str(first.detail["units"])) <= spec.program.work_units
            done = await node.until("a", "done")
            assert done.detail["units"] == spec.program.work_units
            assert done.mono_ns > first.mono_ns
            assert node.happenings == []
            assert node.state("a") is None

        self.on_nodes(tmp_path, 1, scenario)

    def test_caps_are_read_back(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            await node.driver.start(self.spec("a", 60), 0.25, None)
            assert [sample.cap_cores for sample in node.driver.sample()] == [0.25]
            for cap_cores in (0.5, 1.0, 0.1, 2.0):
                assert await node.driver.set_cap("a", cap_cores) == pytest.approx(cap_cores)
                assert [sample.cap_cores for sample in node.driver.sample()] == [cap_cores]
            await node.driver.hold("a")
            assert await node.driver.set_cap("a", 0.3) == pytest.approx(0.3)
            await node.driver.release("a")
            assert [sample.cap_cores for sample in node.driver.sample()] == [0.3]

        self.on_nodes(tmp_path, 1, scenario)

    def test_an_order_that_comes_too_late_fails_after_the_end_was_told(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            await node.driver.start(self.spec("a", 1.0), 1.0, None)

            async def go_on() -> None:
                while True:
                    await node.driver.set_cap("a", 1.0)
                    await asyncio.sleep(0.001)

            with pytest.raises(DriverError):
                await asyncio.wait_for(go_on(), self.within_s)
            assert node.events("a")[-1] == "done"

        self.on_nodes(tmp_path, 1, scenario)

    def test_a_held_guest_stands_still_until_released(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            await node.driver.start(self.spec("a", 0.5), 1.0, None)
            await node.until("a", "progress")
            at = await node.driver.hold("a")
            assert node.state("a") == "held"
            assert await node.driver.hold("a") == at
            assert node.events("a") == []
            await node.driver.release("a")
            assert node.state("a") == "running"
            await node.until("a", "done")

        self.on_nodes(tmp_path, 1, scenario)

    def test_a_saved_guest_goes_on_elsewhere_to_the_same_end(self, tmp_path: Path) -> None:
        async def scenario(here: Node, there: Node) -> None:
            spec = self.spec("a", 0.6)
            await here.driver.start(spec, 1.0, None)
            straight = (await here.until("a", "done")).detail["checksum"]
            await here.driver.start(spec, 1.0, None)
            await here.until("a", "progress")
            at = await here.driver.hold("a")
            image = here.budget.image_dir / "a.img"
            report = await here.driver.save("a", at, image)
            assert report.bytes > 0
            assert report.digest
            assert image.exists()
            assert here.state("a") is None
            await there.driver.start(spec, 1.0, image)
            if self.whole:
                assert there.state("a") == "held"
                assert there.events("a") == []
                await there.driver.release("a")
            progress = await there.until("a", "progress")
            assert int(str(progress.detail["units"])) >= (at or 0) * spec.program.units_per_iteration
            assert (await there.until("a", "done")).detail["checksum"] == straight
            assert here.happenings == []  # a save is neither an end nor a failure

        self.on_nodes(tmp_path, 2, scenario)

    def test_a_save_that_fails_leaves_the_guest_held(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            await node.driver.start(self.spec("a", 0.4), 1.0, None)
            at = await node.driver.hold("a")
            with pytest.raises(DriverError, match=r"a\.img|No such file"):
                await node.driver.save("a", at, tmp_path / "nowhere" / "a.img")
            assert node.state("a") == "held"
            await node.driver.release("a")
            await node.until("a", "done")

        self.on_nodes(tmp_path, 1, scenario)

    def test_stop_destroys_once_and_is_no_error_twice(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            await node.driver.start(self.spec("a", 60), 1.0, None)
            await node.driver.stop("a")
            await node.driver.stop("a")
            assert node.state("a") is None
            assert not {"done", "failed"} & set(node.events("a"))

        self.on_nodes(tmp_path, 1, scenario)

    def test_what_a_killed_agent_left_is_found_and_removed_by_another(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            await node.driver.start(self.spec("a", 600), 1.0, None)
            await node.until("a", "progress")
            other = self.make_again(node)
            found = await other.sweep(node.budget, dry_run=True)
            assert bool(found) is self.leaves
            assert node.state("a") == "running"
            assert await other.sweep(node.budget) == found
            if self.leaves:
                await node.until("a", "failed")
            assert await other.sweep(node.budget) == []

        self.on_nodes(tmp_path, 1, scenario)

    def test_orders_that_make_no_sense_are_refused(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            for order in (node.driver.hold("x"), node.driver.release("x"), node.driver.set_cap("x", 1.0)):
                with pytest.raises(DriverError, match="guest x"):
                    await order
            await node.driver.start(self.spec("a", 60), 1.0, None)
            with pytest.raises(DriverError, match="there already"):
                await node.driver.start(self.spec("a", 60), 1.0, None)
            with pytest.raises(DriverError, match="held"):
                await node.driver.save("a", None, tmp_path / "a.img")
            assert node.state("a") == "running"

        self.on_nodes(tmp_path, 1, scenario)

    def test_an_image_of_another_guest_is_refused(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            await node.driver.start(self.spec("a", 60), 1.0, None)
            await node.driver.hold("a")
            image = node.budget.image_dir / "a.img"
            await node.driver.save("a", None, image)
            with pytest.raises(DriverError, match=r"guest a\b|expected"):
                await node.driver.start(self.spec("b", 60), 1.0, image)
            assert node.driver.sample() == []
            image.write_bytes(b"rubbish")
            with pytest.raises(DriverError, match=r"a\.img"):
                await node.driver.start(self.spec("a", 60), 1.0, image)
            assert node.driver.sample() == []

        self.on_nodes(tmp_path, 1, scenario)

    def test_a_guest_migrates_live_to_the_same_end(self, tmp_path: Path) -> None:
        async def scenario(here: Node, there: Node) -> None:
            assert here.facts is not None
            assert there.facts is not None
            if "live" not in here.facts.capabilities:
                pytest.skip(f"driver {here.driver.name} has not the capability live")
            spec = self.spec("a", self.migration_work_s)
            await here.driver.start(spec, 1.0, None)
            straight = (await here.until("a", "done")).detail["checksum"]
            await here.driver.start(spec, 0.2, None)  # still at work when it has arrived
            await here.until("a", "progress")
            with pytest.raises(DriverError, match="guest a"):
                await there.driver.adopt(spec, 0.5)  # it is not there
            report = await here.driver.migrate("a", there.facts.migration_uri, self.within_s, self.within_s)
            assert here.state("a") is None
            await there.driver.adopt(spec, 0.5)
            assert [sample.cap_cores for sample in there.driver.sample()] == [pytest.approx(0.5)]
            assert report.bytes > 0
            assert 0 <= report.downtime_s <= report.elapsed_s
            await there.until("a", "progress")
            assert await there.driver.set_cap("a", 1.0) == pytest.approx(1.0)
            assert (await there.until("a", "done")).detail["checksum"] == straight
            assert here.happenings == []  # a migration is neither an end nor a failure
            assert there.happenings == []

        self.on_nodes(tmp_path, 2, scenario)

    def test_a_migration_to_nowhere_leaves_the_guest_running(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            await node.driver.start(self.spec("a", 0.5), 0.1, None)  # still at work when it was refused
            await node.until("a", "progress")
            assert node.facts is not None
            nowhere = node.facts.migration_uri + "-nowhere"
            with pytest.raises(DriverError, match="guest a"):
                await node.driver.migrate("a", nowhere, self.within_s, self.within_s)
            assert node.state("a") == "running"
            await node.until("a", "done")

        self.on_nodes(tmp_path, 1, scenario)

    def test_calibration_gives_a_rate(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            assert 100 < await node.driver.calibrate(0.3) < 10_000_000

        self.on_nodes(tmp_path, 1, scenario)

    # --- what calibrations need of every driver

    def test_what_is_not_touched_takes_no_memory_and_no_image(self, tmp_path: Path) -> None:
        async def scenario(here: Node, there: Node) -> None:
            found = {}
            for name, touched_frac in (("a", 1.0), ("b", 0.25)):
                spec = self.spec(name, 60, touched_frac=touched_frac)
                spec = msgspec.structs.replace(spec, memory_mib=self.memory_mib + self.ballast_mib)
                await here.driver.start(spec, 1.0, None)
                await here.until(name, "progress")
                await here.driver.refresh()
                (rss_mib,) = [sample.rss_mib for sample in here.driver.sample()]
                at = await here.driver.hold(name)
                image = here.budget.image_dir / f"{name}.img"
                report = await here.driver.save(name, at, image)
                found[name] = (rss_mib, report.bytes / 2**20)
                await there.driver.start(spec, 1.0, image)
                if self.whole:
                    await there.driver.release(name)
                await there.until(name, "progress")
                await there.driver.refresh()
                (again,) = there.driver.sample()
                assert again.rss_mib < rss_mib + self.ballast_mib / 4  # what was not touched still is not
                await there.driver.stop(name)
            less = [whole - part for whole, part in zip(found["a"], found["b"], strict=True)]
            if not self.lazy:
                assert max(map(abs, less)) < 0.05 * self.ballast_mib, f"resident and image MiB: {found}"
                assert min(found["b"]) >= self.memory_mib + self.ballast_mib
                return
            assert min(less) > 0.6 * self.ballast_mib, f"resident and image MiB: {found}"

        self.on_nodes(tmp_path, 2, scenario)

    def test_a_guest_comes_back_from_memory_and_from_a_cold_disk(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            stores = ImageStores(node.budget.image_dir)
            stores.open_memory("t")
            try:
                spec = self.spec("a", self.migration_work_s)
                await node.driver.start(spec, 1.0, None)
                straight = (await node.until("a", "done")).detail["checksum"]
                await node.driver.start(spec, 1.0, None)
                for store in ("memory", "disk"):
                    await node.until("a", "progress")
                    at = await node.driver.hold("a")
                    await node.driver.save("a", at, stores.place("a.img", store, spec.memory_mib))
                    image = stores.path("a.img")
                    assert (image.parent == node.budget.image_dir) == (store == "disk")
                    assert stores.cached_frac(image, cold=False) == pytest.approx(1.0, abs=0.05)
                    cached_frac = stores.cached_frac(image, cold=True)
                    assert cached_frac == pytest.approx(1.0 if store == "memory" else 0.0, abs=0.05)
                    await node.driver.start(spec, 1.0, image)
                    if self.whole:
                        await node.driver.release("a")
                assert (await node.until("a", "done")).detail["checksum"] == straight
            finally:
                stores.close()

        self.on_nodes(tmp_path, 1, scenario)

    def test_a_cap_change_shows_in_what_is_watched(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            assert node.facts is not None
            await node.driver.start(self.spec("a", 60), 0.8, None)
            await node.until("a", "progress")
            action = Watch(guests=("a",), every_s=0.02, for_s=4.0, caps=(CapChange(after_s=2.0, caps={"a": 0.3}),))
            found = await watch(action, {"a": node.driver.meter("a")}, node.driver.set_cap, virtual=node.facts.virtual)
            t_s, cpu_s, units = found["t_s"], found["cpu_s"]["a"], found["units"]["a"]
            (change,) = found["cap_changes"]
            assert change["caps"] == {"a": pytest.approx(0.3)}
            assert 2.0 <= change["begin_s"] <= change["end_s"] < 4.0
            assert len(t_s) == len(cpu_s) == len(units) > self.watched_least
            assert t_s == sorted(t_s)
            assert 0 <= t_s[0] < 3.9 < t_s[-1] < 4.5
            assert cpu_s == sorted(cpu_s)
            assert units == sorted(units)
            assert units[-1] > units[0]

            def cores(from_s: float, to_s: float) -> float:
                inside = [pair for pair in zip(t_s, cpu_s, strict=True) if from_s <= pair[0] <= to_s]
                return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])

            before, after = cores(0.3, change["begin_s"]), cores(change["end_s"] + 0.4, 4.0)
            assert before <= 0.8 + 0.08  # other work on this machine may take its share: no more than the cap
            assert after <= 0.3 + 0.06
            assert before > after + 0.05 or before < 0.3, f"{before:.3f} and {after:.3f} cores"
            assert after > 0.02
            await node.driver.stop("a")
            with pytest.raises(DriverError, match="guest a"):
                node.driver.meter("a")

        self.on_nodes(tmp_path, 1, scenario)

    def test_a_guest_that_ends_ends_its_watch(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            assert node.facts is not None
            await node.driver.start(self.spec("a", 60), 1.0, None)
            meters = {"a": node.driver.meter("a")}
            action = Watch(guests=("a",), every_s=0.01, for_s=100.0)
            watching = asyncio.create_task(watch(action, meters, node.driver.set_cap, virtual=node.facts.virtual))
            await asyncio.sleep(0)
            await node.driver.stop("a")
            with pytest.raises(DriverError, match="guest a has ended"):
                await watching

        self.on_nodes(tmp_path, 1, scenario)

    def test_programs_run_on_the_node_itself(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            assert node.facts is not None
            assert "native" in node.facts.capabilities
            alone = self.spec("x", 1e6).program
            seconds = 1.0
            free, capped = [await node.driver.native(alone, seconds, cap_cores) for cap_cores in (0.0, 0.3)]
            for report in (free, capped):
                assert seconds <= report.elapsed_s < 4 * seconds
                assert report.units > 0
            assert 0 < free.cpu_s / free.elapsed_s < 1.1, free
            assert 0 < capped.cpu_s / capped.elapsed_s < 0.3 + 0.08, capped
            # other work may slow both, but a second of CPU time does as much in either
            assert capped.units / capped.cpu_s == pytest.approx(free.units / free.cpu_s, rel=0.5)
            job = self.job(1e6, 2)[0].program
            report = await node.driver.native(job, seconds, 0.0)
            assert report.units > 0
            assert report.elapsed_s >= seconds
            assert node.driver.sample() == []  # they are no guests
            assert node.happenings == []
            with pytest.raises(DriverError, match="work units were done"):
                await node.driver.native(self.spec("x", 0.05).program, 100.0, 0.0)

        self.on_nodes(tmp_path, 1, scenario)
        assert not [path for path in tmp_path.rglob("native-*") if path.is_dir()]

    def test_a_job_of_three_is_saved_midway_and_one_member_moves(self, tmp_path: Path) -> None:
        async def scenario(one: Node, two: Node) -> None:
            specs = self.job(0.6, 3, message_bytes=5000)
            members = list(zip((one, one, two), specs, strict=True))
            await self.start_job(members)
            straight = await self.checksums(members)
            await self.start_job(members)
            for node, spec in members:
                await node.until(spec.guest, "progress")
            images = await self.save_job(members)
            assert one.driver.sample() == two.driver.sample() == []
            assert one.happenings == two.happenings == []
            moved = list(zip((one, two, two), specs, strict=True))
            await self.start_job(moved, images)
            assert await self.checksums(moved) == straight

        self.on_nodes(tmp_path, 2, scenario)
