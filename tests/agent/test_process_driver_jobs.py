"""MPI jobs of real processes: every pattern, and checkpoints at awkward moments."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest
from support.agent.process_suite import ProcessSuite as _Base

from node_agent.drivers.process import ProcessDriver
from node_agent.drivers.procs.guest import ProcessGuest
from node_agent.drivers.protocol import DriverError
from node_agent.guests.channel import ChannelError, Message
from node_agent.programs.segments import segments_of
from node_agent.programs.task import TOPOLOGIES
from testbed.bus.topology import neighbours
from testbed.testing.nodes import Node

pytestmark = pytest.mark.slow


def pid_of(node: Node, guest: str) -> int:
    """Return the process of a guest's program."""
    assert isinstance(node.driver, ProcessDriver)
    pid = node.driver._guests[guest]._link.pid
    assert pid is not None
    return pid


class TestJobs:
    suite = _Base()

    @pytest.mark.parametrize("topology", TOPOLOGIES)
    def test_every_pattern_verifies_its_messages(self, tmp_path: Path, topology: str) -> None:
        async def scenario(node: Node) -> None:
            specs = self.suite.job(4, 0.05, topology=topology, message_bytes=1001, units_per_iteration=100)
            members = [(node, spec) for spec in specs]
            await self.suite.start_job(members)
            done = [await node.until(spec.guest, "done") for spec in specs]
            for rank, driver_event in enumerate(done):
                assert driver_event.detail["messages"] == 20 * len(neighbours(topology, rank, 4))
            assert len({each.detail["checksum"] for each in done}) == 4

        self.suite.on_nodes(tmp_path, 1, scenario)

    def test_an_unbalanced_job_is_held_and_saved_at_one_point_again_and_again(self, tmp_path: Path) -> None:
        """Ranks wait for each other's messages when the order arrives; one member's first save fails."""

        async def scenario(one: Node, two: Node) -> None:
            specs = self.suite.job(
                3, self.suite.throttled_s, topology="tree", imbalance="1/i", units_per_iteration=1000
            )
            members = list(zip((one, two, two), specs, strict=True))
            await self.suite.start_job(members)
            straight = await self.suite.checksums(*members)
            await self.suite.start_job(members, cap_cores=self.suite.throttled_cores)
            for _ in range(3):
                points = await asyncio.gather(*(node.driver.hold(spec.guest) for node, spec in members))
                assert max(points) - min(points) <= 2  # a tree of three is two messages deep
                await asyncio.gather(*(node.driver.release(spec.guest) for node, spec in members))
            points = await asyncio.gather(*(node.driver.hold(spec.guest) for node, spec in members))
            saves = [
                asyncio.ensure_future(node.driver.save(spec.guest, max(points), folder / f"{spec.guest}.img"))
                for (node, spec), folder in zip(
                    members, (one.budget.image_dir, two.budget.image_dir, tmp_path / "nowhere"), strict=True
                )
            ]
            with pytest.raises(DriverError, match="No such file"):
                await saves[2]
            for save in saves[:2]:  # the images are written, but the members end only together
                assert not save.done()
                save.cancel()
            await asyncio.gather(*saves, return_exceptions=True)
            assert {node.state(spec.guest) for node, spec in members} == {"held"}
            images = await self.suite.save_job(members)
            assert one.driver.sample() == two.driver.sample() == []
            await self.suite.start_job(members, images)
            assert await self.suite.checksums(*members) == straight
            assert not [each for each in one.driver_events + two.driver_events if each.event == "failed"]

        self.suite.on_nodes(tmp_path, 2, scenario)

    @pytest.mark.parametrize("then", [pytest.param("ends", marks=pytest.mark.long), "is saved"])
    def test_a_job_of_which_one_member_cannot_be_written_goes_on(self, tmp_path: Path, then: str) -> None:
        """Saved members wait for the other: their saves are cancelled, and they are released and end correctly."""

        async def scenario(one: Node, two: Node) -> None:
            specs = self.suite.job(3, self.suite.throttled_s, topology="ring", units_per_iteration=1000)
            members = list(zip((one, two, two), specs, strict=True))
            await self.suite.start_job(members)
            straight = await self.suite.checksums(*members)
            await self.suite.start_job(members, cap_cores=self.suite.throttled_cores)
            points = await asyncio.gather(*(node.driver.hold(spec.guest) for node, spec in members))
            saves = [
                asyncio.ensure_future(node.driver.save(spec.guest, max(points), folder / f"{spec.guest}.img"))
                for (node, spec), folder in zip(
                    members, (one.budget.image_dir, two.budget.image_dir, tmp_path / "nowhere"), strict=True
                )
            ]
            with pytest.raises(DriverError, match="No such file"):
                await saves[2]
            for save in saves[:2]:
                save.cancel()
            await asyncio.gather(*saves, return_exceptions=True)
            await asyncio.gather(*(node.driver.release(spec.guest) for node, spec in members))
            if then == "is saved":
                await asyncio.gather(*(node.driver.hold(spec.guest) for node, spec in members))
                images = await self.suite.save_job(members)
                await self.suite.start_job(members, images)
            else:
                await asyncio.gather(*(node.driver.set_cap(spec.guest, 1.0) for node, spec in members))
            assert await self.suite.checksums(*members) == straight
            assert not [each for each in one.driver_events + two.driver_events if each.event == "failed"]

        self.suite.on_nodes(tmp_path, 2, scenario)

    def test_a_member_that_dies_has_failed_and_its_job_leaves_nothing(self, tmp_path: Path) -> None:
        """The controller ends the other members: `test_live` shows that."""

        async def scenario(one: Node, two: Node) -> None:
            specs = self.suite.job(3)
            members = list(zip((one, two, two), specs, strict=True))
            await self.suite.start_job(members)
            segments = {path for node, spec in members for path in segments_of(pid_of(node, spec.guest))}
            assert segments  # only those of this job, as other tests may have segments in the folder, too
            os.kill(pid_of(two, "m1"), signal.SIGKILL)
            reason = (await two.until("m1", "failed")).detail["reason"]
            assert str(reason) == "it ended by itself: killed by SIGKILL"
            await asyncio.gather(one.driver.stop("m0"), two.driver.stop("m2"))
            assert one.driver.sample() == two.driver.sample() == []
            # a killed rank leaves its shared memory to others
            assert not [path for path in segments if path.exists()]

        self.suite.on_nodes(tmp_path, 2, scenario)

    def test_jobs_beside_each_other_share_no_memory(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            first = [(node, spec) for spec in self.suite.job(2, self.suite.throttled_s)]
            second = [(node, msgspec.structs.replace(spec, guest=f"n{spec.program.rank}", job=2)) for _, spec in first]
            for job in (first, second):
                await self.suite.start_job(job, cap_cores=self.suite.throttled_cores)
            of_first, of_second = (
                {path for _, spec in job for path in segments_of(pid_of(node, spec.guest))} for job in (first, second)
            )
            assert of_first
            assert of_second
            assert of_first.isdisjoint(of_second)
            for _, spec in (*first, *second):
                await node.driver.stop(spec.guest)

        self.suite.on_nodes(tmp_path, 1, scenario)

    def test_ranks_that_die_before_they_report_their_shared_memory_leave_none(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As when a job is killed while MPI starts: a rank already has a segment that its agent does not know."""
        heard = ProcessGuest._heard

        def deaf(guest: ProcessGuest, message: Message | ChannelError) -> None:
            if not (isinstance(message, Message) and message.kind == "joined"):
                heard(guest, message)

        monkeypatch.setattr(ProcessGuest, "_heard", deaf)

        async def scenario(one: Node, two: Node) -> None:
            specs = self.suite.job(3)
            members = list(zip((one, two, two), specs, strict=True))
            await self.suite.start_job(members)
            pids = [pid_of(node, spec.guest) for node, spec in members]
            segments = {path for pid in pids for path in segments_of(pid)}
            assert segments
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            for node, spec in members:
                await node.until(spec.guest, "failed")
            assert not [path for path in segments if path.exists()]

        self.suite.on_nodes(tmp_path, 2, scenario)

    def test_a_member_without_room_is_told_and_the_others_can_be_stopped(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            self.suite.memory_mib = 30
            try:
                with pytest.raises(DriverError, match=r"memory_mib = 30: expected at least \d+"):
                    await self.suite.start_job([(node, spec) for spec in self.suite.job(2)])
            finally:
                del self.suite.memory_mib
            await node.driver.stop("m0")
            await node.driver.stop("m1")

        self.suite.on_nodes(tmp_path, 1, scenario)
