"""Programs that are parked, so that another program can checkpoint them: checkpointed, not checkpointed, ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.agent.process_suite import ProcessSuite as _Base

from node_agent.drivers.process import ProcessDriver
from node_agent.drivers.procs.guest import ProcessGuest
from node_agent.drivers.protocol import DriverError, SaveReport
from testbed.testing.nodes import Node

pytestmark = pytest.mark.slow

REPORT = SaveReport(1, "digest", 0.0, 0.0, 0.0)


class TestParked:
    suite = _Base()

    async def held(self, node: Node, seconds: float | None = None) -> ProcessGuest:
        """Return a guest that has worked and is held."""
        await self.suite.throttle(node, self.suite.spec("a", seconds))
        await node.until("a", "progress")
        await node.driver.hold("a")
        assert isinstance(node.driver, ProcessDriver)
        return node.driver._guests["a"]

    def test_one_that_could_not_be_written_is_held_and_goes_on_to_the_same_end(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            spec = self.suite.spec("a", self.suite.throttled_s)
            straight = await self.suite.straight(node, spec)
            guest = await self.held(node, self.suite.throttled_s)

            async def write() -> SaveReport:
                assert not guest._link.open, "no connection to the agent during the checkpoint"
                raise DriverError("no room")

            for _ in range(3):
                with pytest.raises(DriverError, match="no room"):
                    await guest.save_whole(write)
                assert node.state("a") == "held"
            assert await node.driver.hold("a") == guest._orders.held_at
            await node.driver.release("a")
            assert await self.suite.finish((node, spec)) == [straight]
            assert node.driver_events == []

        self.suite.on_nodes(tmp_path, 1, scenario)

    def test_one_that_was_written_is_ended_without_a_word(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            guest = await self.held(node)

            async def write() -> SaveReport:
                assert node.state("a") == "saving"
                return REPORT

            assert await guest.save_whole(write) == REPORT
            assert node.state("a") is None
            assert node.driver_events == []

        self.suite.on_nodes(tmp_path, 1, scenario)

    def test_one_that_ends_while_it_is_written_has_failed(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            guest = await self.held(node)

            async def write() -> SaveReport:
                guest._processes.children[0].kill()
                await guest._processes.children[0].exited
                raise DriverError("it is gone")

            with pytest.raises(DriverError, match="it is gone"):
                await guest.save_whole(write)
            assert "killed by SIGKILL" in str((await node.until("a", "failed")).detail["reason"])
            assert node.state("a") is None

        self.suite.on_nodes(tmp_path, 1, scenario)

    def test_one_may_be_stopped_meanwhile(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            guest = await self.held(node)
            writing = asyncio.Event()

            async def write() -> SaveReport:
                writing.set()
                await asyncio.Event().wait()
                return REPORT

            saving = asyncio.create_task(guest.save_whole(write))
            await writing.wait()
            await node.driver.stop("a")
            assert node.state("a") is None
            saving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await saving
            assert not {"done", "failed"} & set(node.events("a"))

        self.suite.on_nodes(tmp_path, 1, scenario)

    def test_a_program_that_runs_is_not_parked(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            guest = await self.held(node)
            await node.driver.release("a")
            with pytest.raises(DriverError, match="expected held"):
                await guest.save_whole(lambda: asyncio.sleep(0, REPORT))
            assert node.state("a") == "running"

        self.suite.on_nodes(tmp_path, 1, scenario)
