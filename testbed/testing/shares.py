"""Tests for drivers that implement `Shares`: guests that compete for their node."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from node_agent.drivers.protocol import DriverError
from testbed.bus.caps import same_share
from testbed.bus.messages import GuestSpec
from testbed.testing.nodes import Node
from testbed.testing.suite import DriverSuite


class SharesConformance(DriverSuite):
    """Tests of `node_agent.drivers.protocol.Shares`."""

    def shared(self, guest: str, share_cores: float) -> GuestSpec:
        """Return a guest with endless work and a share."""
        return msgspec.structs.replace(self.spec(guest), share_cores=share_cores)

    def test_a_guest_has_its_share_before_it_works_and_another_when_told(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            await node.driver.start(self.shared("a", 0.3), self.node_cpus)
            await node.driver.start(self.shared("b", 1.2), self.node_cpus)
            await node.until("a", "progress")
            assert self._same(await node.share("a"), 0.3)
            for share_cores in (0.5, self.node_cpus, 0.01):
                assert self._same(await node.sharing.set_share("a", share_cores), share_cores)
                assert self._same(await node.share("a"), share_cores)
            assert self._same(await node.share("b"), 1.2)

        self.on_nodes(tmp_path, 1, scenario, "shares")

    def test_a_guest_without_a_share_gets_none(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            await node.driver.start(self.spec("a"), 0.5)
            await node.until("a", "progress")
            with pytest.raises(DriverError):
                await node.sharing.set_share("a", 0.5)
            assert await node.share("a") is None
            with pytest.raises(DriverError):
                await node.sharing.set_share("nobody", 0.5)

        self.on_nodes(tmp_path, 1, scenario, "shares")

    def _same(self, found_cores: float | None, share_cores: float) -> bool:
        return found_cores is not None and same_share(found_cores, share_cores, self.node_cpus)
