"""Containers outlive their agent, as processes do, and are removed once they are not needed any more."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.agent.adopted_shares import AdoptedShares
from support.agent.adoption import AT_WORK, SAVE, AdoptionSuite, Bench, ended
from support.containers.engine import EngineAt, why_not
from support.live import until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]


def containers(url: str) -> list[dict[str, Any]]:
    """Return the engine's list of containers."""
    import docker

    with contextlib.closing(docker.DockerClient(url)) as client:
        return [found.attrs for found in client.containers.list(all=True, ignore_removed=True)]


def limits(url: str) -> list[int]:
    """Return the memory limits of containers from the engine."""
    return [int(found["HostConfig"]["Memory"]) for found in containers(url)]


def remove_all(url: str) -> None:
    """Remove all containers, as another program may do."""
    import docker

    with contextlib.closing(docker.DockerClient(url)) as client:
        for found in client.containers.list(all=True):
            found.remove(force=True)


class TestContainers(AdoptionSuite, AdoptedShares):
    LONG: ClassVar = {  # processes do them in every run of the tests
        "test_a_guest_that_ends_without_an_agent_is_done",
        "test_the_end_of_a_guest_is_told_until_it_is_settled",
        "test_a_guest_that_is_killed_without_an_agent_has_failed",
        "test_a_repeated_save_is_the_one_under_way",
        "test_a_save_that_nobody_wants_any_more_is_given_up",
        "test_a_save_that_fails_leaves_the_guest_held",
        "test_a_guest_whose_start_was_under_way_is_destroyed",
        "test_members_that_wait_for_their_job_can_still_join_it",
        "test_a_rank_that_waits_in_a_barrier_of_its_start_is_destroyed",
        "test_agents_may_follow_one_another_at_any_rate",
        "test_guests_die_with_their_keeper_if_no_agent_comes_back",
        "test_a_guest_that_was_being_saved_whole_is_destroyed",
        "test_a_second_agent_on_the_same_folder_is_refused_and_harms_nothing",
    }

    @pytest.fixture
    def bench(self, tmp_path: Path, docker_engine: EngineAt) -> Bench:
        return Bench(tmp_path, docker_engine.url)

    @pytest.fixture(autouse=True)
    def _nothing_is_left(self, docker_engine: EngineAt) -> Iterator[None]:
        yield
        assert containers(docker_engine.url) == []

    def test_an_ended_container_is_kept_until_its_end_is_settled(self, bench: Bench) -> None:
        async def main() -> None:
            async with bench.next() as node:
                await node.driver.start(bench.suite.spec("a", 0.01), 1.0)
                await node.until("a", "done")
                assert len(containers(bench.kind)) == 1
                node.driver.settled("a")
                await until(lambda: containers(bench.kind) == [], "the removal of the container")

        asyncio.run(main())

    def test_a_container_that_was_removed_without_an_agent_has_failed(self, bench: Bench) -> None:
        async def main() -> None:
            async with bench.other() as agent:
                await agent.do(AT_WORK)
                await agent.kill()
            await asyncio.to_thread(remove_all, bench.kind)
            async with bench.next() as node:
                assert "No such container" in str((await node.until("a", "failed")).detail["reason"])

        asyncio.run(main())

    def test_containers_of_a_keeper_that_has_ended_are_removed(self, bench: Bench) -> None:
        async def main() -> None:
            async with bench.other(keep_s=0.1) as agent:
                pid = await agent.do(AT_WORK)
                pidfd = os.pidfd_open(pid)
                await agent.kill()
            await ended(pidfd)
            async with bench.next() as node:
                assert node.driver.sample() == []
                assert containers(bench.kind) == []

        asyncio.run(main())

    def test_the_memory_limit_of_a_save_that_failed_is_lowered_again(self, bench: Bench) -> None:
        async def main() -> None:
            async with bench.other() as agent:
                pid = await agent.do(AT_WORK)
                (usual,) = limits(bench.kind)
                step = SAVE.replace("image_dir", "image_dir / 'nowhere'").replace("tasks", "os.kill(pid, 19)\ntasks", 1)
                await agent.do(step)
                (raised,) = limits(bench.kind)
                assert raised > usual
                await agent.kill()
            async with bench.next() as node:
                assert limits(bench.kind) == [raised]
                os.kill(pid, signal.SIGCONT)
                await until(lambda: node.state("a") == "held", "the failure of the save")
                await until(lambda: limits(bench.kind) == [usual], "the usual limit")

        asyncio.run(main())

    def test_a_guest_of_the_trial_of_criu_is_destroyed(self, bench: Bench) -> None:
        async def main() -> None:
            async with bench.other() as agent:
                name = await agent.do("""
                    name = node.driver._trial_name
                    await node.driver.start(suite.spec(name), 1.0)
                    return name
                """)
                await agent.kill()
            async with bench.next() as node:
                assert name == node.driver._trial_name
                assert node.driver.taken_over() == []
                assert node.driver.sample() == []
                assert containers(bench.kind) == []
                assert node.driver_events == []

        asyncio.run(main())

    @pytest.mark.parametrize("save", ["criu", "program"])  # how the next agent saves guests
    def test_a_whole_container_goes_on_if_the_next_agent_can_save_it(self, bench: Bench, save: str) -> None:
        async def main() -> None:
            async with bench.other() as agent:
                pid = await agent.do(f"node.driver.why_not_whole = ''\n{AT_WORK}")
                pidfd = os.pidfd_open(pid)
                await agent.kill()
            bench.suite._save = save
            async with bench.next() as node:
                if save == "program":
                    await ended(pidfd)
                    assert node.driver.taken_over() == []
                    assert node.driver_events == []
                    return
                os.close(pidfd)
                assert node.driver._wholes == {"a"}
                assert await node.caps("a") == (0.02, 0.02)
                assert await bench.finish(node, "a") == bench.right(bench.spec())

        asyncio.run(main())
