"""Tests for drivers that implement `Migrates`: live migration of guests to another node."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from node_agent.drivers.protocol import DriverError
from testbed.bus.migration import Destination
from testbed.testing.live import HANG_S
from testbed.testing.nodes import Node
from testbed.testing.suite import DriverSuite


class MigratesConformance(DriverSuite):
    """Tests of `node_agent.drivers.protocol.Migrates`."""

    def destination(self, node: Node) -> Destination:
        """Return the destination of guests that migrate to a node."""
        return Destination(uri=f"null://{node.budget.node}/system", host=node.budget.node, node=node.budget.node)

    def test_a_guest_migrates_live_to_the_same_end(self, tmp_path: Path) -> None:
        async def scenario(here: Node, there: Node) -> None:
            spec = self.spec("a", self.throttled_s)
            straight = await self.straight(here, spec)
            await self.throttle(here, spec)
            await here.until("a", "progress")
            cap_cores = 1.5 * self.throttled_cores
            with pytest.raises(DriverError, match="guest a"):
                await there.migrating.adopt(spec, cap_cores)  # no guest has arrived yet
            report = await here.migrating.migrate("a", self.destination(there), HANG_S, HANG_S)
            assert here.state("a") is None
            await there.migrating.adopt(spec, cap_cores)  # the guest had no cap there before, and may be done
            caps = [sample.cap_cores for sample in there.driver.sample()]
            assert caps == [pytest.approx(cap_cores)] or "done" in there.events("a")
            assert report.bytes > 0
            assert 0 <= report.downtime_s <= report.elapsed_s
            assert await self.finish((there, spec)) == [straight]
            assert here.driver_events == []  # a migration is neither an end nor a failure
            assert there.driver_events == []

        self.on_nodes(tmp_path, 2, scenario, "live")

    def test_a_migration_to_nowhere_leaves_the_guest_running(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            spec = self.spec("a", self.throttled_s)
            await self.throttle(node, spec)
            await node.until("a", "progress")
            nowhere = msgspec.structs.replace(self.destination(node), uri=f"{self.destination(node).uri}-nowhere")
            with pytest.raises(DriverError, match="guest a"):
                await node.migrating.migrate("a", nowhere, HANG_S, HANG_S)
            assert node.state("a") == "running"
            await self.finish((node, spec))

        self.on_nodes(tmp_path, 1, scenario, "live")
