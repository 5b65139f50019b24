"""The conformance suite of drivers, with real containers of a real engine."""

from __future__ import annotations

import asyncio
import gc
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
from support.containers.engine import EngineAt, engine, group_of, why_not
from support.containers.suite import Containers
from support.live import ENDLESS_UNITS

from node_agent.abilities import Abilities
from node_agent.drivers.containers.frozen import is_frozen
from node_agent.drivers.protocol import DriverError, NodeBudget
from node_agent.stores import ImageStores
from testbed.bus.messages import GuestSpec, ProgramSpec
from testbed.errors import UserError
from testbed.testing.nodes import Node

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]


class TestDockerDriver(Containers):
    LONG: ClassVar = {  # processes do them in every run of the tests
        "test_a_job_of_three_is_saved_midway_and_one_member_moves",
        "test_what_is_not_touched_takes_no_memory_and_no_image",
        "test_an_order_that_comes_too_late_fails_after_the_end_was_told",
        "test_an_image_of_another_guest_is_refused",
        "test_all_ranks_of_a_program_run_on_the_node_itself",
    }

    @pytest.fixture(autouse=True)
    def _engine(self, docker_engine: EngineAt) -> None:
        self._url = docker_engine.url

    def limits_mib(self) -> list[int]:
        """Return the memory limits of the containers from the engine."""
        import docker

        client = docker.DockerClient(self._url)
        try:
            return [found.attrs["HostConfig"]["Memory"] >> 20 for found in client.containers.list()]
        finally:
            client.close()

    def test_a_guest_is_saved_to_memory_beside_itself(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            stores = ImageStores(node.budget.image_dir)
            stores.open_memory("t")
            try:
                spec = msgspec.structs.replace(self.spec("a"), memory_mib=400)
                await node.driver.start(spec, 1.0)
                at = await node.driver.hold("a")
                before = self.limits_mib()
                with pytest.raises(DriverError, match="nowhere"):
                    await node.driver.save("a", at, tmp_path / "nowhere" / "a.img")
                assert self.limits_mib() == before
                report = await node.driver.save("a", at, stores.place("a.img", "memory", spec.memory_mib))
                assert report.bytes > 300 << 20
            finally:
                stores.close()

        self.on_nodes(tmp_path, 1, scenario)


@pytest.fixture(scope="module")
def experimental_engine() -> Iterator[EngineAt]:
    with engine(experimental=True) as found:
        yield found


class TestWholeContainers(Containers):
    """Containers that CRIU checkpoints: only if this machine's kernel and version of CRIU permit it."""

    _save = "criu"

    @pytest.fixture(autouse=True)
    def _engine(self, experimental_engine: EngineAt, why_no_criu: str) -> None:
        if why_no_criu:  # the tests below cover this case on every machine
            pytest.skip(f"CRIU saves no container here: {why_no_criu}")
        self._url = experimental_engine.url

    def test_images_are_of_whole_containers(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            assert "save:criu" in node.capabilities
            assert node.driver_events == []  # the trial causes no events
            await node.driver.start(self.spec("a"), 0.5)
            await node.until("a", "progress")
            image = node.budget.image_dir / "a.img"
            for _ in range(3):
                at = await node.driver.hold("a")
                report = await node.driver.save("a", at, image)
                assert is_frozen(image)
                assert image.stat().st_size == report.bytes
                await node.driver.restore(self.spec("a"), 0.25, image)
                assert [sample.cap_cores for sample in node.driver.sample()] == [0.25]
                progress = await node.until("a", "progress")
                assert int(str(progress.detail["units"])) >= (at or 0) * self.units_per_iteration
            assert [path.name for path in node.budget.image_dir.iterdir()] == ["a.img"]

        self.on_nodes(tmp_path, 1, scenario)

    def test_a_node_that_saves_by_programs_refuses_it(self, tmp_path: Path) -> None:
        from node_agent.drivers.containers.driver import DockerDriver

        async def scenario(node: Node) -> None:
            await node.driver.start(self.spec("a"), 1.0)
            await node.driver.hold("a")
            image = node.budget.image_dir / "a.img"
            await node.driver.save("a", None, image)
            other = Node(
                DockerDriver(url=self._url, save="program", cgroup_parent=group_of(self._url)),
                replace(node.budget, node="other", state_dir=tmp_path / "other"),
            )
            try:
                await other.open()
                assert "save:program" in other.capabilities
                with pytest.raises(DriverError, match="cannot restore: its agent has no option save=criu"):
                    await other.driver.restore(self.spec("a"), 1.0, image)
                assert other.driver.sample() == []
            finally:
                await other.driver.close()

        self.on_nodes(tmp_path, 1, scenario)


@pytest.fixture(scope="module")
def why_no_criu(experimental_engine: EngineAt) -> str:
    """Return the reason of a driver that has tried CRIU without success; empty if CRIU works."""
    from node_agent.drivers.containers.driver import DockerDriver

    async def main() -> str:
        with tempfile.TemporaryDirectory(prefix="agent-") as name:
            folder = Path(name)
            driver = DockerDriver(experimental_engine.url, "criu", group_of(experimental_engine.url))
            try:
                budget = NodeBudget("n", 1.0, 1000, folder / "s", folder / "i", "127.0.0.1", "dfrs-t-")
                facts = await driver.open(budget, lambda _driver_event: None)
                able = Abilities(driver).found(facts)
            finally:
                await driver.close()
            assert ("save:criu" in able) is not ("save:program" in able)
            assert ("save:criu" in able) is (not driver.why_not_whole)
            return driver.why_not_whole

    return asyncio.run(main())


def test_where_criu_does_not_work_programs_save_themselves(
    tmp_path: Path, experimental_engine: EngineAt, why_no_criu: str
) -> None:
    """The driver follows its trial of CRIU, which it does not make on an engine that is not experimental."""
    from node_agent.drivers.containers.driver import DockerDriver

    async def main() -> None:
        driver = DockerDriver(experimental_engine.url, "criu", group_of(experimental_engine.url))
        budget = NodeBudget("n", 1.0, 1000, tmp_path / "s", tmp_path / "i", "127.0.0.1", "dfrs-t-")
        try:
            await driver.open(budget, lambda _driver_event: None)
            assert driver.sample() == []
            program = ProgramSpec("eatcpu", ENDLESS_UNITS, 200, 1)
            spec = GuestSpec(guest="g", run="t", job=1, task=0, cpu_cores=1.0, memory_mib=96, program=program)
            await driver.start(spec, 1.0)
            at = await driver.hold("g")
            await driver.save("g", at, tmp_path / "i" / "g.img")
            assert is_frozen(tmp_path / "i" / "g.img") is (not why_no_criu)
            await driver.restore(spec, 1.0, tmp_path / "i" / "g.img")
            assert (await driver.hold("g") or 0) >= (at or 0)
        finally:
            await driver.close()

    asyncio.run(main())


def test_a_way_of_saving_that_is_not_known_is_told() -> None:
    from node_agent.drivers.make import make_driver

    with pytest.raises(UserError, match="save = 'disk': expected program or criu"):
        make_driver("docker", {"save": "disk"})


def test_criu_has_to_be_asked_for_by_name() -> None:
    """CRIU runs as root and reads files of other nodes. The test needs no engine, which only an open driver uses."""
    from node_agent.drivers.containers.driver import DockerDriver

    assert DockerDriver()._save == "program"


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # the SDK causes it at a refused connection
def test_an_engine_that_does_not_answer_is_told(tmp_path: Path) -> None:
    from node_agent.drivers.containers.driver import DockerDriver

    budget = NodeBudget("n", 1.0, 100, tmp_path / "s", tmp_path / "i", "127.0.0.1", "dfrs-")
    with pytest.raises(DriverError, match="Docker: "):
        asyncio.run(DockerDriver(url=f"unix://{tmp_path}/none.sock").open(budget, lambda _driver_event: None))
    gc.collect()  # while the warning is ignored
