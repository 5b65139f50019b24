"""What every driver must do, whatever its guests are: a suite to inherit from."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from driver_suite import DriverSuite, Node
from support.accuracy import Accuracy, Window
from support.live import HANG_S, until

from node_agent.drivers.protocol import DriverError
from node_agent.stores import ImageStores
from node_agent.watch import watch
from testbed.bus.messages import CapChange, Watch
from testbed.bus.migration import Destination


class DriverConformance(DriverSuite):
    """Tests of one driver; see `DriverSuite` for what a driver's own class says."""

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
            spec = self.spec("a")
            most_cores = spec.program.workers

            async def told() -> tuple[float | None, float | None]:
                await node.driver.refresh()
                (sample,) = node.driver.sample()
                return sample.cap_cores, sample.wanted_cores

            await node.driver.start(spec, 0.25, None)
            assert await told() == (pytest.approx(0.25), 0.25)
            for cap_cores in (0.5, 1.0, 0.1, 2.0):
                in_force = pytest.approx(min(cap_cores, most_cores))
                assert await node.driver.set_cap("a", cap_cores) == in_force
                assert await told() == (in_force, cap_cores)
            await node.driver.hold("a")
            held_cores = await node.driver.set_cap("a", 0.3)  # some drivers lift the cap of a held guest
            assert held_cores in (pytest.approx(0.3), most_cores)
            assert await told() == (pytest.approx(held_cores), 0.3)
            await node.driver.release("a")
            assert await told() == (pytest.approx(0.3), 0.3)

        self.on_nodes(tmp_path, 1, scenario)

    def test_an_order_that_comes_too_late_fails_after_the_end_was_told(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            spec = self.spec("a", 1.0)  # speed: what is tested is an order after the end
            await node.driver.start(spec, 1.0, None)

            async def go_on() -> None:
                while True:
                    await node.driver.set_cap("a", 1.0)
                    await asyncio.sleep(0.001)  # speed: between orders, of which the last fails

            with pytest.raises(DriverError):
                await asyncio.wait_for(go_on(), HANG_S)
            assert node.events("a")[-1] == "done"

        self.on_nodes(tmp_path, 1, scenario)

    def test_a_held_guest_stands_still_until_released(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            spec = self.spec("a", self.throttled_s)
            await self.throttle(node, spec)
            await node.until("a", "progress")
            at = await node.driver.hold("a")
            assert node.state("a") == "held"
            assert await node.driver.hold("a") == at
            begin_s = await node.cpu_s("a")
            await node.driver.start(self.spec("b"), 1.0, None)
            released = await node.work("b", 0.5)
            held = await node.cpu_s("a") - begin_s
            assert held < 0.1 * released, "CPU time of a guest that is held, and of one that is not"
            await node.driver.stop("b")
            assert node.events("a") == []
            await node.driver.release("a")
            assert node.state("a") == "running"
            await self.finish((node, spec))

        self.on_nodes(tmp_path, 1, scenario)

    def test_a_saved_guest_goes_on_elsewhere_to_the_same_end(self, tmp_path: Path) -> None:
        async def scenario(here: Node, there: Node) -> None:
            spec = self.spec("a", self.throttled_s)
            straight = await self.straight(here, spec)
            await self.throttle(here, spec)
            await here.until("a", "progress")
            at = await here.driver.hold("a")
            image = here.budget.image_dir / "a.img"
            report = await here.driver.save("a", at, image)
            assert report.bytes > 0
            assert report.digest
            assert image.exists()
            assert here.state("a") is None
            await self.throttle(there, spec, image)
            if self.whole:
                assert there.state("a") == "held"
                assert there.events("a") == []
                await there.driver.release("a")
            progress = await there.until("a", "progress")
            assert int(str(progress.detail["units"])) >= (at or 0) * spec.program.units_per_iteration
            assert await self.finish((there, spec)) == [straight]
            assert here.happenings == []  # a save is neither an end nor a failure

        self.on_nodes(tmp_path, 2, scenario)

    def test_a_save_that_fails_leaves_the_guest_held(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            spec = self.spec("a", self.throttled_s)
            await self.throttle(node, spec)
            at = await node.driver.hold("a")
            with pytest.raises(DriverError, match=r"a\.img|No such file"):
                await node.driver.save("a", at, tmp_path / "nowhere" / "a.img")
            assert node.state("a") == "held"
            await node.driver.release("a")
            await self.finish((node, spec))

        self.on_nodes(tmp_path, 1, scenario)

    def test_stop_destroys_once_and_is_no_error_twice(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            await node.driver.start(self.spec("a"), 1.0, None)
            await node.driver.stop("a")
            await node.driver.stop("a")
            assert node.state("a") is None
            assert not {"done", "failed"} & set(node.events("a"))

        self.on_nodes(tmp_path, 1, scenario)

    def test_what_a_killed_agent_left_is_found_and_removed_by_another(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            await node.driver.start(self.spec("a"), 1.0, None)
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
            await node.driver.start(self.spec("a"), 1.0, None)
            with pytest.raises(DriverError, match="there already"):
                await node.driver.start(self.spec("a"), 1.0, None)
            with pytest.raises(DriverError, match="held"):
                await node.driver.save("a", None, tmp_path / "a.img")
            assert node.state("a") == "running"

        self.on_nodes(tmp_path, 1, scenario)

    def test_an_image_of_another_guest_is_refused(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            await node.driver.start(self.spec("a"), 1.0, None)
            await node.driver.hold("a")
            image = node.budget.image_dir / "a.img"
            await node.driver.save("a", None, image)
            with pytest.raises(DriverError, match=r"guest a\b|expected"):
                await node.driver.start(self.spec("b"), 1.0, image)
            assert node.driver.sample() == []
            image.write_bytes(b"rubbish")
            with pytest.raises(DriverError, match=r"a\.img"):
                await node.driver.start(self.spec("a"), 1.0, image)
            assert node.driver.sample() == []

        self.on_nodes(tmp_path, 1, scenario)

    def destination(self, node: Node) -> Destination:
        """Return where guests go that migrate to a node."""
        return Destination(uri=f"null://{node.budget.node}/system", host=node.budget.node, node=node.budget.node)

    def test_a_guest_migrates_live_to_the_same_end(self, tmp_path: Path) -> None:
        async def scenario(here: Node, there: Node) -> None:
            assert here.facts is not None
            assert there.facts is not None
            if "live" not in here.facts.capabilities:
                pytest.skip(f"driver {here.driver.name} has not the capability live")
            spec = self.spec("a", self.throttled_s)
            straight = await self.straight(here, spec)
            await self.throttle(here, spec)
            await here.until("a", "progress")
            cap_cores = 1.5 * self.throttled_cores
            with pytest.raises(DriverError, match="guest a"):
                await there.driver.adopt(spec, cap_cores)  # it is not there
            report = await here.driver.migrate("a", self.destination(there), HANG_S, HANG_S)
            assert here.state("a") is None
            await there.driver.adopt(spec, cap_cores)
            assert [sample.cap_cores for sample in there.driver.sample()] == [pytest.approx(cap_cores)]
            assert report.bytes > 0
            assert 0 <= report.downtime_s <= report.elapsed_s
            await there.until("a", "progress")
            assert await self.finish((there, spec)) == [straight]
            assert here.happenings == []  # a migration is neither an end nor a failure
            assert there.happenings == []

        self.on_nodes(tmp_path, 2, scenario)

    def test_a_migration_to_nowhere_leaves_the_guest_running(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            spec = self.spec("a", self.throttled_s)
            await self.throttle(node, spec)
            await node.until("a", "progress")
            assert node.facts is not None
            nowhere = msgspec.structs.replace(self.destination(node), uri=f"{self.destination(node).uri}-nowhere")
            with pytest.raises(DriverError, match="guest a"):
                await node.driver.migrate("a", nowhere, HANG_S, HANG_S)
            assert node.state("a") == "running"
            await self.finish((node, spec))

        self.on_nodes(tmp_path, 1, scenario)

    def test_calibration_gives_the_rate_of_guests(self, tmp_path: Path, accuracy: Accuracy) -> None:
        async def scenario(node: Node) -> None:
            window = Window()
            calibrated = await node.driver.calibrate(0.3)
            await node.driver.start(self.spec("a"), 1.0, None)
            ratio = calibrated / await node.rate("a", 2.0)
            # on any machine: the same unit, and not the rate of something else; an emulated guest that has to wait for
            # a CPU takes that for time at work when it calibrates
            assert 1 / 20 < ratio < 4
            accuracy.check("calibrated rate over that of a guest", ratio, 0.75, 1.33, window)

        self.on_nodes(tmp_path, 1, scenario)

    # --- what calibrations need of every driver

    def test_what_is_not_touched_takes_no_memory_and_no_image(self, tmp_path: Path) -> None:
        async def scenario(here: Node, there: Node) -> None:
            found = {}
            for name, touched_frac in (("a", 1.0), ("b", 0.25)):
                spec = self.spec(name, touched_frac=touched_frac)
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
                spec = self.spec("a", self.throttled_s)
                straight = await self.straight(node, spec)
                await self.throttle(node, spec)
                for store in ("memory", "disk"):
                    await node.until("a", "progress")
                    at = await node.driver.hold("a")
                    await node.driver.save("a", at, stores.place("a.img", store, spec.memory_mib))
                    image = stores.path("a.img")
                    assert (image.parent == node.budget.image_dir) == (store == "disk")
                    assert stores.cached_frac(image, cold=False) == pytest.approx(1.0, abs=0.05)
                    cached_frac = stores.cached_frac(image, cold=True)
                    assert cached_frac == pytest.approx(1.0 if store == "memory" else 0.0, abs=0.05)
                    await self.throttle(node, spec, image)
                    if self.whole:
                        await node.driver.release("a")
                assert await self.finish((node, spec)) == [straight]
            finally:
                stores.close()

        self.on_nodes(tmp_path, 1, scenario)

    def test_a_cap_change_shows_in_what_is_watched(self, tmp_path: Path, accuracy: Accuracy) -> None:
        every_s, for_s, change_s = 0.02, 4.0, 2.0

        async def scenario(node: Node) -> None:
            assert node.facts is not None
            await node.driver.start(self.spec("a"), 0.8, None)
            await node.until("a", "progress")
            meter, window = node.driver.meter("a"), Window()
            action = Watch(
                guests=("a",), every_s=every_s, for_s=for_s, caps=(CapChange(after_s=change_s, caps={"a": 0.3}),)
            )
            found = await watch(action, {"a": meter}, node.driver.set_cap, virtual=node.facts.virtual)
            t_s, cpu_s, units = found["t_s"], found["cpu_s"]["a"], found["units"]["a"]
            (change,) = found["cap_changes"]
            assert change["caps"] == {"a": pytest.approx(0.3)}
            assert change_s <= change["begin_s"] <= change["end_s"]
            assert len(t_s) == len(cpu_s) == len(units) > 1
            assert t_s == sorted(t_s)
            assert all(at_s >= step * every_s - 1e-3 for step, at_s in enumerate(t_s))  # none is early
            accuracy.check("samples", len(t_s), self.watched_frac * for_s / every_s, for_s / every_s + 1, window)
            accuracy.check("the last sample", t_s[-1], for_s - 0.1, for_s + 0.5, window)
            assert cpu_s == sorted(cpu_s)
            assert units == sorted(units)
            assert cpu_s[-1] > cpu_s[0]
            await until(lambda: meter().units > units[0], "progress of a guest that is watched")

            for cap_cores, from_s, to_s in (
                (0.8, 0.3, change["begin_s"]),
                (0.3, change["end_s"] + 0.4, for_s),
            ):
                inside = [number for number, at_s in enumerate(t_s[:-1]) if from_s <= at_s <= to_s]
                accuracy.check(f"samples at a cap of {cap_cores}", len(inside), 5, for_s / every_s, window)
                if len(inside) < 2:
                    continue  # this process stood still, or the line above has failed
                first, last = inside[0], inside[-1]
                used_s = cpu_s[last] - cpu_s[first]
                if "cap:duty" not in node.facts.capabilities:  # that one is this process's, which may be late
                    # the CPU time is read between the time of its own sample and that of the next; 0.1 s is more than
                    # the phase of two periods
                    assert used_s <= cap_cores * (t_s[last + 1] - t_s[first]) + 0.1, (cap_cores, used_s)
                cores = used_s / (t_s[last] - t_s[first])
                accuracy.check(f"cores at a cap of {cap_cores}", cores, 0.75 * cap_cores, cap_cores + 0.08, window)
            await node.driver.stop("a")
            with pytest.raises(DriverError, match="guest a"):
                node.driver.meter("a")

        self.on_nodes(tmp_path, 1, scenario)

    def test_a_guest_that_ends_ends_its_watch(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            assert node.facts is not None
            await node.driver.start(self.spec("a"), 1.0, None)
            meters = {"a": node.driver.meter("a")}
            action = Watch(guests=("a",), every_s=0.02, for_s=120.0)  # the longest that there is
            watching = asyncio.create_task(watch(action, meters, node.driver.set_cap, virtual=node.facts.virtual))
            await asyncio.sleep(0)
            await node.driver.stop("a")
            with pytest.raises(DriverError, match="guest a has ended"):
                await watching

        self.on_nodes(tmp_path, 1, scenario)

    def test_programs_run_on_the_node_itself(self, tmp_path: Path, accuracy: Accuracy) -> None:
        async def scenario(node: Node) -> None:
            assert node.facts is not None
            assert "native" in node.facts.capabilities
            alone, seconds, window = self.spec("x").program, 1.0, Window()
            free, capped = [await node.driver.native(alone, seconds, cap_cores) for cap_cores in (0.0, 0.3)]
            for report, cap_cores in ((free, 1.0), (capped, 0.3)):
                assert report.elapsed_s >= seconds
                assert report.units > 0
                assert report.cpu_s > 0
                accuracy.check(f"seconds, {cap_cores} cores", report.elapsed_s, seconds, 2 * seconds, window)
                cores = report.cpu_s / report.elapsed_s
                accuracy.check(f"cores of {cap_cores}", cores, 0.75 * cap_cores, cap_cores + 0.08, window)
            ratio = (capped.units / capped.cpu_s) / (free.units / free.cpu_s)
            accuracy.check("units in a second of CPU time, with and without a cap", ratio, 0.67, 1.5, window)
            job = self.job(2)[0].program
            report = await node.driver.native(job, seconds, 0.0)
            assert report.units > 0
            assert report.elapsed_s >= seconds
            assert node.driver.sample() == []  # they are no guests
            assert node.happenings == []
            with pytest.raises(DriverError, match="work units were done"):
                await node.driver.native(self.spec("x", 0.05).program, HANG_S, 0.0)

        self.on_nodes(tmp_path, 1, scenario)
        assert not [path for path in tmp_path.rglob("native-*") if path.is_dir()]

    def test_a_job_of_three_is_saved_midway_and_one_member_moves(self, tmp_path: Path) -> None:
        async def scenario(one: Node, two: Node) -> None:
            specs = self.job(3, self.throttled_s, message_bytes=5000)
            members = list(zip((one, one, two), specs, strict=True))
            await self.start_job(members)
            straight = await self.checksums(*members)
            await self.start_job(members, cap_cores=self.throttled_cores)
            for node, spec in members:
                await node.until(spec.guest, "progress")
            images = await self.save_job(members)
            assert one.driver.sample() == two.driver.sample() == []
            assert one.happenings == two.happenings == []
            moved = list(zip((one, two, two), specs, strict=True))
            await self.start_job(moved, images, self.throttled_cores)
            assert await self.finish(*moved) == straight

        self.on_nodes(tmp_path, 2, scenario)
