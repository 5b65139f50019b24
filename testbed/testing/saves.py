"""Tests for drivers that implement `Saves`: hold, release, save and restore."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from node_agent.drivers.protocol import DriverError, FindsSaves
from node_agent.stores import ImageStores
from testbed.testing.nodes import Node
from testbed.testing.suite import DriverSuite


class SavesConformance(DriverSuite):
    """Tests of `node_agent.drivers.protocol.Saves`."""

    def test_the_cap_of_a_held_guest_holds_once_it_goes_on(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            spec = self.spec("a")
            await node.driver.start(spec, 0.5)
            await node.saving.hold("a")
            held_cores = await node.driver.set_cap("a", 0.3)  # some drivers lift the cap of a held guest
            assert held_cores in (pytest.approx(0.3), spec.program.workers)
            assert await node.caps("a") == (pytest.approx(held_cores), 0.3)
            await node.saving.release("a")
            assert await node.caps("a") == (pytest.approx(0.3), 0.3)

        self.on_nodes(tmp_path, 1, scenario, "save")

    def test_a_held_guest_stands_still_until_released(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            spec = self.spec("a", self.throttled_s)
            await self.throttle(node, spec)
            await node.until("a", "progress")
            at = await node.saving.hold("a")
            assert node.state("a") == "held"
            assert await node.saving.hold("a") == at
            begin_s = await node.cpu_s("a")
            await node.driver.start(self.spec("b"), 1.0)
            released = await node.work("b", 0.5)
            held = await node.cpu_s("a") - begin_s
            assert held < 0.1 * released, "a held guest used CPU time"
            await node.driver.stop("b")
            assert node.events("a") == []
            await node.saving.release("a")
            assert node.state("a") == "running"
            await self.finish((node, spec))

        self.on_nodes(tmp_path, 1, scenario, "save")

    def test_a_saved_guest_goes_on_elsewhere_to_the_same_end(self, tmp_path: Path) -> None:
        async def scenario(here: Node, there: Node) -> None:
            spec = self.spec("a", self.throttled_s)
            straight = await self.straight(here, spec)
            await self.throttle(here, spec)
            await here.until("a", "progress")
            at = await here.saving.hold("a")
            image = here.budget.image_dir / "a.img"
            report = await here.saving.save("a", at, image)
            assert report.bytes > 0
            assert report.digest
            assert image.exists()
            assert here.state("a") is None
            await self.throttle(there, spec, image)
            if there.whole:
                assert there.state("a") == "held"
                assert there.events("a") == []
                await there.saving.release("a")
            progress = await there.until("a", "progress")
            assert int(str(progress.detail["units"])) >= (at or 0) * spec.program.units_per_iteration
            assert await self.finish((there, spec)) == [straight]
            assert here.driver_events == []  # a save is neither an end nor a failure

        self.on_nodes(tmp_path, 2, scenario, "save")

    def test_the_image_of_a_finished_save_is_found_once_its_guest_is_gone(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            if not isinstance(node.driver, FindsSaves):
                pytest.skip(f"driver {node.driver.name} does not find saves of a killed agent")
            spec = self.spec("a", self.throttled_s)
            await self.throttle(node, spec)
            await node.until("a", "progress")
            at = await node.saving.hold("a")
            image = node.budget.image_dir / "a.img"
            assert await node.driver.finished_save("a", at, image) is None
            report = await node.saving.save("a", at, image)
            found = await node.driver.finished_save("a", at, image)  # None if files cannot show it, as with Xen
            assert found is None or (found.bytes, found.digest) == (report.bytes, report.digest)

        self.on_nodes(tmp_path, 1, scenario, "save")

    def test_a_save_that_fails_leaves_the_guest_held(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            spec = self.spec("a", self.throttled_s)
            await self.throttle(node, spec)
            at = await node.saving.hold("a")
            with pytest.raises(DriverError, match=r"a\.img|No such file"):
                await node.saving.save("a", at, tmp_path / "nowhere" / "a.img")
            assert node.state("a") == "held"
            await node.saving.release("a")
            await self.finish((node, spec))

        self.on_nodes(tmp_path, 1, scenario, "save")

    def test_saves_that_make_no_sense_are_refused(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            for order in (node.saving.hold("x"), node.saving.release("x")):
                with pytest.raises(DriverError, match="guest x"):
                    await order
            await node.driver.start(self.spec("a"), 1.0)
            with pytest.raises(DriverError, match="held"):
                await node.saving.save("a", None, tmp_path / "a.img")
            assert node.state("a") == "running"

        self.on_nodes(tmp_path, 1, scenario, "save")

    def test_an_image_of_another_guest_is_refused(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            await node.driver.start(self.spec("a"), 1.0)
            await node.saving.hold("a")
            image = node.budget.image_dir / "a.img"
            await node.saving.save("a", None, image)
            with pytest.raises(DriverError, match=r"guest a\b|expected"):
                await node.saving.restore(self.spec("b"), 1.0, image)
            assert node.driver.sample() == []
            image.write_bytes(b"rubbish")
            with pytest.raises(DriverError, match=r"a\.img"):
                await node.saving.restore(self.spec("a"), 1.0, image)
            assert node.driver.sample() == []

        self.on_nodes(tmp_path, 1, scenario, "save")

    # --- requirements of calibrations

    def test_what_is_not_touched_takes_no_memory_and_no_image(self, tmp_path: Path) -> None:
        async def scenario(here: Node, there: Node) -> None:
            found = {}
            for name, touched_frac in (("a", 1.0), ("b", 0.25)):
                spec = self.spec(name, touched_frac=touched_frac)
                spec = msgspec.structs.replace(spec, memory_mib=self.memory_mib + self.ballast_mib)
                await here.driver.start(spec, 1.0)
                await here.until(name, "progress")
                await here.driver.refresh()
                (rss_mib,) = [sample.rss_mib for sample in here.driver.sample()]
                at = await here.saving.hold(name)
                image = here.budget.image_dir / f"{name}.img"
                report = await here.saving.save(name, at, image)
                found[name] = (rss_mib, report.bytes / 2**20)
                await there.saving.restore(spec, 1.0, image)
                if there.whole:
                    await there.saving.release(name)
                await there.until(name, "progress")
                await there.driver.refresh()
                (again,) = there.driver.sample()
                assert again.rss_mib < rss_mib + self.ballast_mib / 4  # untouched memory is still untouched
                await there.driver.stop(name)
            less = [whole - part for whole, part in zip(found["a"], found["b"], strict=True)]
            if not self.lazy:
                assert max(map(abs, less)) < 0.05 * self.ballast_mib, f"resident and image MiB: {found}"
                assert min(found["b"]) >= self.memory_mib + self.ballast_mib
                return
            assert min(less) > 0.6 * self.ballast_mib, f"resident and image MiB: {found}"

        self.on_nodes(tmp_path, 2, scenario, "save")

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
                    at = await node.saving.hold("a")
                    await node.saving.save("a", at, stores.place("a.img", store, spec.memory_mib))
                    image = stores.path("a.img")
                    assert (image.parent == node.budget.image_dir) == (store == "disk")
                    assert stores.cached_frac(image, cold=False) == pytest.approx(1.0, abs=0.05)
                    cached_frac = stores.cached_frac(image, cold=True)
                    assert cached_frac == pytest.approx(1.0 if store == "memory" else 0.0, abs=0.05)
                    await self.throttle(node, spec, image)
                    if node.whole:
                        await node.saving.release("a")
                assert await self.finish((node, spec)) == [straight]
            finally:
                stores.close()

        self.on_nodes(tmp_path, 1, scenario, "save")
