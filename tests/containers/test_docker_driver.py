"""Real containers of a real engine, held to what every driver must do."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from driver_conformance import DriverConformance, Node
from engine import EngineAt, engine, why_not

from node_agent.drivers.protocol import Driver, DriverError
from node_agent.stores import ImageStores

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]


@pytest.fixture(scope="module")
def docker_engine() -> Iterator[EngineAt]:
    with engine() as found:
        yield found


class TestDockerDriver(DriverConformance):
    memory_mib = 96
    units_a_second = 40_000
    units_per_iteration = 200

    @pytest.fixture(autouse=True)
    def _engine(self, docker_engine: EngineAt) -> None:
        self._url = docker_engine.url

    def make(self) -> Driver:
        from node_agent.drivers.containers.driver import DockerDriver

        return DockerDriver(url=self._url)

    def test_a_guest_is_saved_to_memory_beside_itself(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            stores = ImageStores(node.budget.image_dir)
            stores.open_memory("t")
            try:
                spec = msgspec.structs.replace(self.spec("a", 60), memory_mib=400)
                await node.driver.start(spec, 1.0, None)
                at = await node.driver.hold("a")
                report = await node.driver.save("a", at, stores.place("a.img", "memory", spec.memory_mib))
                assert report.bytes > 300 << 20
            finally:
                stores.close()

        self.on_nodes(tmp_path, 1, scenario)


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # the SDK's, of a connection that is refused
def test_an_engine_that_does_not_answer_is_told(tmp_path: Path) -> None:
    from node_agent.drivers.containers.driver import DockerDriver
    from node_agent.drivers.protocol import NodeBudget

    budget = NodeBudget("n", 1.0, 100, tmp_path / "s", tmp_path / "i", "127.0.0.1", "dfrs-")
    with pytest.raises(DriverError, match="Docker: "):
        asyncio.run(DockerDriver(url=f"unix://{tmp_path}/none.sock").open(budget, lambda _happening: None))
    gc.collect()  # while the warning is ignored
