"""Agents that are killed: their guests keep running, and the next agent adopts them in their current state."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from node_agent.drivers.process import ProcessDriver
from node_agent.drivers.protocol import DriverError, DriverEvent, SaveReport
from node_agent.programs.expected import expected_checksum
from node_agent.programs.segments import segments_of
from node_agent.programs.task import Task
from support.agent.driver_process import OtherAgent, other_agent, suite_of
from support.agent.fence_file import fence
from support.live import HANG_S, until
from testbed.bus.messages import MPI_BARRIER, GuestSpec
from testbed.host.process_identity import start_ticks, stat_fields
from testbed.testing.mpi_job import MpiJob
from testbed.testing.nodes import Node

START = "await node.driver.start(suite.spec('a', suite.throttled_s), suite.throttled_cores)"
AT_WORK = f"""
{START}
await node.until('a', 'progress')
return node.driver._guests['a']._link.pid
"""
JOB_AT_WORK = """
members = [(node, spec) for spec in suite.job(2, suite.throttled_s, topology='ring', units_per_iteration=1000)]
await suite.start_job(members, cap_cores=suite.throttled_cores)
for _, spec in members:
    await node.until(spec.guest, 'progress')
return [node.driver._guests[spec.guest]._link.pid for _, spec in members]
"""
SAVE = """
await node.driver.hold('a')
pid = node.driver._guests['a']._link.pid
tasks.append(asyncio.ensure_future(node.driver.save('a', None, node.budget.image_dir / 'a.img')))
while node.state('a') != 'saving':
    await asyncio.sleep(0)  # polls: no event reports this state
"""


class Saved:
    """Saves that an earlier agent had ordered, as reported to the next agent."""

    def __init__(self) -> None:
        self.heard: dict[str, tuple[Path, SaveReport]] = {}

    def __call__(self, guest: str, _at: int | None, image: Path, report: SaveReport) -> None:
        self.heard[guest] = image, report


class Bench:
    """One node, and the successive agents on it."""

    def __init__(self, folder: Path, kind: str) -> None:
        """`kind` is the argument of `suite_of`."""
        self.folder = folder
        self.kind = kind
        self.suite = suite_of(kind)
        self.saved = Saved()

    def other(self, keep_s: float = HANG_S) -> contextlib.AbstractAsyncContextManager[OtherAgent]:
        return other_agent(self.folder, self.kind, keep_s)

    @contextlib.asynccontextmanager
    async def next(self) -> AsyncIterator[Node]:
        (node,) = self.suite.nodes(self.folder, 1)
        assert isinstance(node.driver, ProcessDriver)
        node.driver.on_saved = self.saved
        await node.open()
        try:
            yield node
        finally:
            await node.driver.close()
        assert node.driver.sample() == []

    def carry_on(self, node: Node) -> None:
        """Play the controller of a job, which knows of all its barriers so far."""
        servers = {spec.guest: node.driver._guests[spec.guest].rank.server for spec in self.members()}
        job = MpiJob([(node.driver, spec) for spec in self.members()])
        (job.session,) = {one.session for one in servers.values()}
        (job.barriers.released,) = {one.barriers - one.waiting for one in servers.values()}
        node.mpi_jobs.append(job)
        for guest, one in servers.items():
            if one.waiting:  # this barrier was reported to the earlier agent
                job.hear(DriverEvent(guest, MPI_BARRIER, 0, one.barrier().detail()))

    async def finish(self, node: Node, *guests: str) -> dict[str, object]:
        """Let guests work at full speed; return their checksums."""
        for guest in guests:
            await node.driver.set_cap(guest, 1.0)
        return {guest: (await node.until(guest, "done")).detail["checksum"] for guest in guests}

    def right(self, *specs: GuestSpec) -> dict[str, object]:
        return {spec.guest: expected_checksum(Task.from_spec(msgspec.to_builtins(spec))) for spec in specs}

    def spec(self) -> GuestSpec:
        return self.suite.spec("a", self.suite.throttled_s)

    def members(self) -> list[GuestSpec]:
        return self.suite.job(2, self.suite.throttled_s, topology="ring", units_per_iteration=1000)


def state_of(pid: int) -> str:
    """Return the letter of a process's state, or nothing if it has ended."""
    return (stat_fields(Path("/proc", str(pid))) or [""])[0]


async def ended(pidfd: int) -> None:
    """Wait for the end of a process."""
    await until(lambda: select.select([pidfd], [], [], 0)[0], "the end of a process")
    os.close(pidfd)


class AdoptionSuite:
    """Tests of a driver whose guests outlive a killed agent; a subclass has the fixture `bench`."""

    def test_a_guest_at_work_goes_on_under_its_cap_and_comes_to_the_right_end(self, bench: Bench) -> None:
        async def main() -> None:
            async with bench.other() as agent:
                pid = await agent.do(AT_WORK)
                await agent.kill()
            if bench.kind == "duty":  # no agent enforces its cap
                await until(lambda: state_of(pid) == "T", "a stopped program")
            async with bench.next() as node:
                (sample,) = node.driver.sample()
                assert (sample.guest, sample.state) == ("a", "running")
                assert (sample.cap_cores, sample.wanted_cores) == (0.02, 0.02)
                assert node.driver._guests["a"]._link.pid == pid
                assert [spec.guest for spec in node.driver.taken_over()] == ["a"]
                await node.until("a", "progress")
                assert await bench.finish(node, "a") == bench.right(bench.spec())

        asyncio.run(main())

    def test_a_guest_that_ends_without_an_agent_is_done(self, bench: Bench) -> None:
        async def main() -> None:
            async with bench.other() as agent:
                pid = await agent.do(
                    f"{START}\npid = node.driver._guests['a']._link.pid\nos.kill(pid, 19)\n"
                    "await node.driver.set_cap('a', 1.0)\nos.kill(pid, 19)\nreturn pid"
                )
                pidfd = os.pidfd_open(pid)
                await agent.kill()
            os.kill(pid, signal.SIGCONT)  # the guest has no cap, so only this test can have stopped it
            await ended(pidfd)
            async with bench.next() as node:
                done = await node.until("a", "done")
                assert {"a": done.detail["checksum"]} == bench.right(bench.spec())
                assert node.driver.sample() == []

        asyncio.run(main())

    def test_the_end_of_a_guest_is_told_until_it_is_settled(self, bench: Bench) -> None:
        """The first agent is killed before the guest's end has reached the bus."""

        async def main() -> None:
            async with bench.other() as agent:
                await agent.do("await node.driver.start(suite.spec('a', 0.01), 1.0)\nawait node.until('a', 'done')")
                await agent.kill()
            async with bench.other() as agent:
                await agent.do("await node.until('a', 'done')\nnode.driver.settled('a')")
                await agent.kill()
            async with bench.next() as node:
                assert node.driver_events == []

        asyncio.run(main())

    def test_a_guest_that_is_killed_without_an_agent_has_failed(self, bench: Bench) -> None:
        async def main() -> None:
            async with bench.other() as agent:
                pid = await agent.do(AT_WORK)
                await agent.kill()
            pidfd = os.pidfd_open(pid)
            os.kill(pid, signal.SIGKILL)
            await ended(pidfd)
            async with bench.next() as node:
                assert "killed by SIGKILL" in str((await node.until("a", "failed")).detail["reason"])

        asyncio.run(main())

    def test_a_held_guest_is_still_held_and_can_be_saved(self, bench: Bench) -> None:
        async def main() -> None:
            async with bench.other() as agent:
                await agent.do(AT_WORK)
                at = await agent.do("return await node.driver.hold('a')")
                await agent.kill()
            async with bench.next() as node:
                assert node.state("a") == "held"
                assert await node.driver.hold("a") == at
                image = node.budget.image_dir / "a.img"
                await node.driver.save("a", None, image)
                await node.driver.restore(bench.spec(), 1.0, image)
                assert {"a": (await node.until("a", "done")).detail["checksum"]} == bench.right(bench.spec())

        asyncio.run(main())

    @pytest.mark.parametrize("when", ["before", "after"])  # the program has written its image
    def test_a_save_under_way_is_completed_and_reported(self, bench: Bench, when: str) -> None:
        async def main() -> None:
            async with bench.other() as agent:
                pid = await agent.do(AT_WORK)
                pidfd = os.pidfd_open(pid)
                if when == "before":
                    await agent.do(SAVE.replace("tasks", "os.kill(pid, 19)\ntasks", 1))
                else:
                    await agent.do(SAVE)
                await agent.kill()
            image = bench.folder / "images0" / "a.img"
            if when == "after":
                await ended(pidfd)
            else:
                assert not image.exists()
            async with bench.next() as node:
                if when == "before":
                    os.kill(pid, signal.SIGCONT)
                while node.driver.sample():  # noqa: ASYNC110  # no event to wait for
                    await asyncio.sleep(0)  # at each step of the loop, either the guest exists or its save is reported
                assert bench.saved.heard["a"][0] == image
                assert node.driver.taken_over() == []
                assert bench.saved.heard["a"][1].bytes == image.stat().st_size
                assert node.driver.sample() == []
                assert node.driver_events == []
                await node.driver.restore(bench.spec(), 1.0, image)
                assert {"a": (await node.until("a", "done")).detail["checksum"]} == bench.right(bench.spec())

        asyncio.run(main())

    def test_a_repeated_save_is_the_one_under_way(self, bench: Bench) -> None:
        async def main() -> None:
            async with bench.other() as agent:
                pid = await agent.do(AT_WORK)
                await agent.do(SAVE.replace("tasks", "os.kill(pid, 19)\ntasks", 1))
                await agent.kill()
            async with bench.next() as node:
                image = node.budget.image_dir / "a.img"
                again = asyncio.ensure_future(node.driver.save("a", None, image))
                os.kill(pid, signal.SIGCONT)
                assert (await again).bytes == image.stat().st_size
                assert bench.saved.heard == {}  # the caller that awaits the save records it

        asyncio.run(main())

    def test_a_save_that_nobody_wants_any_more_is_given_up(self, bench: Bench) -> None:
        """The controller releases the guest, as it does after an error."""

        async def main() -> None:
            async with bench.other() as agent:
                await agent.do(JOB_AT_WORK)
                behind = await agent.do("""
                    points = await asyncio.gather(*(node.driver.hold(guest) for guest in ('m0', 'm1')))
                    behind = points.index(min(points))  # the other one has sent all that it needs
                    image = node.budget.image_dir / 'm.img'
                    tasks.append(asyncio.ensure_future(node.driver.save(f'm{behind}', max(points), image)))
                    while not image.exists():
                        await asyncio.sleep(0)  # polls: no event reports this state
                    return behind
                """)
                await agent.kill()
            async with bench.next() as node:
                bench.carry_on(node)
                assert isinstance(behind, int)
                assert node.state(f"m{behind}") == "saving"
                assert node.state(f"m{1 - behind}") == "held"
                await asyncio.gather(*(node.driver.release(guest) for guest in ("m0", "m1")))
                assert bench.saved.heard == {}
                assert await bench.finish(node, "m0", "m1") == bench.right(*bench.members())

        asyncio.run(main())

    def test_a_save_that_fails_leaves_the_guest_held(self, bench: Bench) -> None:
        async def main() -> None:
            async with bench.other() as agent:
                await agent.do(AT_WORK)
                await agent.do(SAVE.replace("image_dir", "image_dir / 'nowhere'"))
                await agent.kill()
            async with bench.next() as node:
                await until(lambda: node.state("a") == "held", "the failure of the save")
                await node.driver.release("a")
                assert await bench.finish(node, "a") == bench.right(bench.spec())

        asyncio.run(main())

    def test_a_guest_whose_start_was_under_way_is_destroyed(self, bench: Bench) -> None:
        async def main() -> None:
            async with bench.other() as agent:
                pid = await agent.do(f"""
                    tasks.append(asyncio.ensure_future({START.removeprefix("await ")}))
                    while not node.driver._guests or (pid := node.driver._guests['a']._link.pid) is None:
                        await asyncio.sleep(0)  # polls: no event reports this state
                    os.kill(pid, 19)
                    return pid
                """)
                await agent.kill()
            async with bench.next() as node:
                assert node.driver.sample() == []
                assert start_ticks(pid) is None
                assert node.driver_events == []
                await node.driver.start(bench.spec(), 1.0)
                assert {"a": (await node.until("a", "done")).detail["checksum"]} == bench.right(bench.spec())

        asyncio.run(main())

    def test_ranks_at_work_go_on_and_come_to_the_right_end(self, bench: Bench) -> None:
        async def main() -> None:
            async with bench.other() as agent:
                pids = await agent.do(JOB_AT_WORK)
                await agent.kill()
            segments = {path for pid in pids for path in segments_of(pid)}
            assert segments
            async with bench.next() as node:
                bench.carry_on(node)
                assert {sample.guest: sample.state for sample in node.driver.sample()} == {
                    "m0": "running",
                    "m1": "running",
                }
                assert await bench.finish(node, "m0", "m1") == bench.right(*bench.members())
            assert not [path for path in segments if path.exists()]

        asyncio.run(main())

    def test_ranks_that_are_saved_together_without_an_agent(self, bench: Bench) -> None:
        async def main() -> None:
            async with bench.other() as agent:
                await agent.do(JOB_AT_WORK)
                await agent.do("""
                    points = await asyncio.gather(*(node.driver.hold(guest) for guest in ('m0', 'm1')))
                    for guest in ('m0', 'm1'):
                        image = node.budget.image_dir / f'{guest}.img'
                        tasks.append(asyncio.ensure_future(node.driver.save(guest, max(points), image)))
                    while [node.state(guest) for guest in ('m0', 'm1')] != ['saving', 'saving']:
                        await asyncio.sleep(0)  # polls: no event reports this state
                """)
                await agent.kill()
            images = bench.folder / "images0"
            await until(lambda: len([*images.glob("*.img")]) == 2, "both images")
            async with bench.next() as node:
                bench.carry_on(node)
                await until(lambda: len(bench.saved.heard) == 2, "the reports of the saves")
                images = {guest: image for guest, (image, _) in bench.saved.heard.items()}
                await bench.suite.start_job([(node, spec) for spec in bench.members()], images)
                assert await bench.finish(node, "m0", "m1") == bench.right(*bench.members())

        asyncio.run(main())

    def test_members_that_wait_for_their_job_can_still_join_it(self, bench: Bench) -> None:
        async def main() -> None:
            async with bench.other() as agent:
                await agent.do("""
                    for spec in suite.job(2, suite.throttled_s, topology='ring', units_per_iteration=1000):
                        await node.driver.start(spec, suite.throttled_cores)
                """)
                await agent.kill()
            async with bench.next() as node:
                assert {sample.state for sample in node.driver.sample()} == {"waiting"}
                job = MpiJob([(node.driver, spec) for spec in bench.members()])
                node.mpi_jobs.append(job)
                await job.join()
                assert await bench.finish(node, "m0", "m1") == bench.right(*bench.members())

        asyncio.run(main())

    def test_a_rank_that_waits_in_a_barrier_of_its_start_is_destroyed(self, bench: Bench) -> None:
        async def main() -> None:
            async with bench.other() as agent:
                pid = await agent.do("""
                    one, two = suite.job(2, suite.throttled_s)
                    await node.driver.start(one, 1.0)
                    entered = asyncio.Event()
                    class Job:
                        hear = staticmethod(lambda event: entered.set())
                    node.mpi_jobs.append(Job)
                    tasks.append(asyncio.ensure_future(node.driver.mpi_join('m0', '0123')))
                    await entered.wait()
                    return node.driver._guests['m0']._link.pid
                """)
                segments = segments_of(pid)
                await agent.kill()
            async with bench.next() as node:
                assert node.driver.sample() == []
                assert start_ticks(pid) is None
                assert not [path for path in segments if path.exists()]

        asyncio.run(main())

    def test_agents_may_follow_one_another_at_any_rate(self, bench: Bench) -> None:
        async def main() -> None:
            async with bench.other() as agent:
                pid = await agent.do(AT_WORK)
                await agent.kill()
            for _ in range(5):
                async with bench.other() as agent:
                    assert await agent.do("return node.driver._guests['a']._link.pid") == pid
                    await agent.kill()
            async with bench.next() as node:
                assert await bench.finish(node, "a") == bench.right(bench.spec())

        asyncio.run(main())

    def test_guests_die_with_their_keeper_if_no_agent_comes_back(self, bench: Bench) -> None:
        async def main() -> None:
            async with bench.other(keep_s=0.1) as agent:
                pids = await agent.do(JOB_AT_WORK)
                keeper = await agent.do("return node.driver._keeping.pid")
                pidfds = [os.pidfd_open(pid) for pid in (*pids, keeper)]
                segments = {path for pid in pids for path in segments_of(pid)}
                await agent.kill()
            for pidfd in pidfds:
                await ended(pidfd)
            assert segments
            assert not [path for path in segments if path.exists()]
            assert not (bench.folder / "s0" / "keeper").exists()
            async with bench.next() as node:
                assert node.driver.sample() == []

        asyncio.run(main())

    @pytest.mark.parametrize("agent_is", ["killed", "stopped"])
    def test_a_guest_is_killed_at_its_fence_by_the_keeper_even_if_it_is_stopped(
        self, bench: Bench, agent_is: str
    ) -> None:
        async def main() -> None:
            folder = bench.folder / "s0"
            folder.mkdir(mode=0o700)
            fence(folder, a=3600.0)
            async with bench.other() as agent:
                pid = await agent.do(AT_WORK)
                pidfd = os.pidfd_open(pid)
                os.kill(pid, signal.SIGSTOP)
                if agent_is == "killed":
                    await agent.kill()
                else:
                    agent.stop()
                fence(folder, a=0.1)
                await ended(pidfd)
            async with bench.next() as node:
                assert "fences" in node.capabilities
                assert "killed by SIGKILL" in str((await node.until("a", "failed")).detail["reason"])

        asyncio.run(main())

    def test_a_guest_that_was_being_saved_whole_is_destroyed(self, bench: Bench) -> None:
        """The program has closed its channel, so the progress of the save is unknown."""

        async def main() -> None:
            async with bench.other() as agent:
                pid = await agent.do(AT_WORK)
                pidfd = os.pidfd_open(pid)
                await agent.do("""
                    await node.driver.hold('a')
                    writing = asyncio.Event()
                    async def write():
                        writing.set()
                        await asyncio.Event().wait()
                    tasks.append(asyncio.ensure_future(node.driver._guests['a'].save_whole(write)))
                    await writing.wait()
                """)
                await agent.kill()
            async with bench.next() as node:
                await ended(pidfd)
                assert node.driver.taken_over() == []
                assert node.driver.sample() == []
                assert node.driver_events == []

        asyncio.run(main())

    def test_a_cleanup_ends_keepers_and_guests_of_dead_agents(self, bench: Bench) -> None:
        async def main() -> None:
            async with bench.other() as agent:
                pid = await agent.do(AT_WORK)
                keeper = await agent.do("return node.driver._keeping.pid")
                await agent.kill()
            (node,) = bench.suite.nodes(bench.folder, 1)
            listed = await node.driver.sweep(node.budget, dry_run=True)
            guests = {"guest a"} if bench.suite.make().name == "docker" else set()
            assert set(listed) == {f"process {pid}", f"process {keeper}", *guests}
            assert start_ticks(pid) is not None
            await node.driver.sweep(node.budget)
            assert start_ticks(pid) is None
            assert start_ticks(keeper) is None
            async with bench.next() as again:
                assert again.driver.sample() == []

        asyncio.run(main())

    def test_guests_fail_with_their_keeper(self, bench: Bench) -> None:
        async def main() -> None:
            async with bench.next() as node:
                await node.driver.start(bench.spec(), 0.1)
                os.kill(node.driver._keeping.pid, signal.SIGKILL)
                assert "killed by SIGKILL" in str((await node.until("a", "failed")).detail["reason"])
                with pytest.raises(DriverError, match="the keeper of this agent's guests has ended"):
                    await node.driver.start(bench.spec(), 0.1)

        asyncio.run(main())

    def test_a_second_agent_on_the_same_folder_is_refused_and_harms_nothing(self, bench: Bench) -> None:
        async def main() -> None:
            async with bench.other() as agent:
                pid = await agent.do(AT_WORK)
                (node,) = bench.suite.nodes(bench.folder, 1)
                with pytest.raises(DriverError, match="another agent has this folder"):
                    await node.open()
                assert start_ticks(pid) is not None
                await agent.do("await node.driver.stop('a')")
                await agent.kill()

        asyncio.run(main())
