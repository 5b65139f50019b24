"""Tests for drivers that implement `Joins`: guests are members of MPI jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from node_agent.drivers.protocol import DriverError
from testbed.testing.nodes import Node
from testbed.testing.suite import DriverSuite


class JoinsConformance(DriverSuite):
    """Tests of `node_agent.drivers.protocol.Joins`, and of coordinated saves of MPI jobs."""

    def test_a_job_of_two_begins_together_and_ends_to_the_same_result_each_time(self, tmp_path: Path) -> None:
        async def scenario(one: Node, two: Node) -> None:
            specs = self.job(2, 0.5)
            found = []
            for members in ([(one, specs[0]), (two, specs[1])], [(two, specs[0]), (one, specs[1])]):
                await self.start_job(members)
                found.append(await self.checksums(*members))
            assert found[0] == found[1]
            assert all(found[0]) or "checksums" not in one.capabilities

        self.on_nodes(tmp_path, 2, scenario, "mpi")

    def test_joins_that_make_no_sense_are_refused(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            with pytest.raises(DriverError, match="guest x"):
                await node.joining.mpi_join("x", "session")
            await node.joining.mpi_pass("x", "session", 1, (), last=True)  # no error: the guest may have just ended

        self.on_nodes(tmp_path, 1, scenario, "mpi")

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
            assert one.driver_events == two.driver_events == []
            moved = list(zip((one, two, two), specs, strict=True))
            await self.start_job(moved, images, self.throttled_cores)
            assert await self.finish(*moved) == straight

        self.on_nodes(tmp_path, 2, scenario, "mpi", "save")
