"""Real virtual machines whose agent is killed: the guests that the next agent finds, and its reports."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.agent.libvirt_nodes import THROTTLED_CORES, THROTTLED_UNITS, Node, ends, finish, node, serial, twin
from support.libvirt_box import driver_options, libvirt_box, needs_hypervisor
from support.live import HANG_S, until

from node_agent.drivers.protocol import MigrationReport
from node_agent.drivers.virt.guest import VirtualGuest
from node_agent.drivers.virt.migration import Migration

pytestmark = [needs_hypervisor, pytest.mark.slow]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    with libvirt_box(f"t{os.getpid():x}k", tmp_path_factory.mktemp("lab")) as journal:
        yield journal


def domains(lab: object) -> list[str]:
    """Return the domains on the first node."""
    uri = driver_options(lab, "a")["uri"]
    printed = subprocess.run(["virsh", "-q", "-c", uri, "list", "--all", "--name"], check=True, capture_output=True)
    return printed.stdout.decode().split()


async def kill(one: Node) -> None:
    """End a node's driver without any cleanup, as when its agent is killed."""
    for guest in one.driver._guests.values():
        guest.detach()
    await one.driver._hypervisor.close()
    one.driver._hypervisor = None


def test_guests_outlive_their_agent(lab: object, tmp_path: Path):
    works, held, ended = serial(), serial(THROTTLED_UNITS, 1), serial(THROTTLED_UNITS, 2)

    async def main() -> None:
        async with node(lab, "a", tmp_path) as one:
            for spec in (works, held, ended):
                await one.work(spec)
            await one.driver.hold(held.guest)
            pids = [one.pid(spec.guest) for spec in (works, held)]
            killed = one.pid(ended.guest)
            await kill(one)
        os.kill(killed, signal.SIGKILL)
        await until(lambda: ended.guest not in domains(lab), "the end of a machine")
        async with node(lab, "a", tmp_path) as one:
            assert [one.pid(spec.guest) for spec in (works, held)] == pids
            assert {spec.guest for spec in one.driver.taken_over()} == {works.guest, held.guest, ended.guest}
            assert (one.sample(works.guest).state, one.sample(held.guest).state) == ("running", "held")
            assert one.sample(works.guest).wanted_cores == pytest.approx(THROTTLED_CORES)
            failed = await one.until(ended.guest, "failed")
            assert failed.detail["reason"] == "its virtual machine ended while no agent was there"
            await one.until(works.guest, "progress")
            await one.driver.release(held.guest)
            assert await finish([(one, held)]) == [twin(held)]
            await kill(one)  # before the end has reached a controller
        async with node(lab, "a", tmp_path) as one:
            assert await ends([(one, held)]) == [twin(held)]
            one.driver.settled(held.guest)
            await one.driver.stop(works.guest)
            assert one.driver.sample() == []

    asyncio.run(main())


def test_a_guest_that_has_migrated_has_not_ended_for_the_next_agent(
    lab: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run, spec = Migration.run, serial(THROTTLED_UNITS, memory_mib=256)

    async def main() -> None:
        over = asyncio.Event()

        async def lost(migration: Migration) -> MigrationReport:
            await run(migration)
            over.set()
            return await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(Migration, "run", lost)
        async with node(lab, "b", tmp_path) as two:
            async with node(lab, "a", tmp_path) as one:
                await one.work(spec)
                moving = asyncio.ensure_future(one.driver.migrate(spec.guest, two.destination, HANG_S, HANG_S))
                await over.wait()
                await kill(one)
                moving.cancel()
            async with node(lab, "a", tmp_path) as one:
                assert one.driver.taken_over() == []
                assert one.driver_events == []
            await two.driver.adopt(spec, THROTTLED_CORES)
            assert await finish([(two, spec)]) == [twin(spec)]

    asyncio.run(main())


def test_what_an_earlier_agent_left_without_a_note_is_removed(lab: object, tmp_path: Path):
    async def vanish() -> None:
        async with node(lab, "a", tmp_path) as one:
            await one.driver.start(serial(), 1.0)
            await kill(one)
            (tmp_path / "a" / "guests.json").unlink()

    async def come_back() -> None:
        async with node(lab, "a", tmp_path):
            assert domains(lab) == []

    asyncio.run(vanish())
    assert domains(lab) == [serial().guest]
    asyncio.run(come_back())


class StuckDestroys:
    """Blocks all calls of `VirtualGuest.destroy`; `at_work` is set once the domain was destroyed, or would be."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, destroys: bool) -> None:
        self.at_work = asyncio.Event()
        destroy = VirtualGuest.destroy

        async def stuck(guest: VirtualGuest) -> None:
            if destroys:
                await destroy(guest)
            self.at_work.set()
            await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(VirtualGuest, "destroy", stuck)


@pytest.mark.parametrize("destroys", [False, True])
def test_the_end_of_a_guest_is_known_to_the_next_agent_before_its_machine_is_destroyed(
    lab: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, destroys: bool
):
    spec = serial(300)  # speed: the work must be done before the agent is killed

    async def main() -> None:
        with monkeypatch.context() as patched:
            stuck = StuckDestroys(patched, destroys=destroys)
            async with node(lab, "a", tmp_path) as one:
                await one.driver.start(spec, 1.0)
                await stuck.at_work.wait()
                assert one.driver_events[-1].event != "done"
                await kill(one)
        async with node(lab, "a", tmp_path) as one:
            assert await ends([(one, spec)]) == [twin(spec)]
            assert domains(lab) == []

    asyncio.run(main())


def test_the_end_of_a_guest_is_known_to_the_next_agent_if_its_start_has_not_returned(
    lab: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    spec = serial(300)  # speed: the work must be done before the agent is killed

    async def main() -> None:
        with monkeypatch.context() as patched:
            stuck = StuckDestroys(patched, destroys=True)
            made = VirtualGuest.made

            async def slow_made(guest: VirtualGuest) -> None:
                await made(guest)
                await stuck.at_work.wait()

            patched.setattr(VirtualGuest, "made", slow_made)
            async with node(lab, "a", tmp_path) as one:
                await one.driver.start(spec, 1.0)
                await kill(one)
        async with node(lab, "a", tmp_path) as one:
            assert await ends([(one, spec)]) == [twin(spec)]

    asyncio.run(main())


def test_a_guest_that_was_being_stopped_has_not_failed_for_the_next_agent(
    lab: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    spec = serial(THROTTLED_UNITS)

    async def main() -> None:
        with monkeypatch.context() as patched:
            stuck = StuckDestroys(patched, destroys=True)
            async with node(lab, "a", tmp_path) as one:
                await one.work(spec)
                stopping = asyncio.ensure_future(one.driver.stop(spec.guest))
                await stuck.at_work.wait()
                await kill(one)
                stopping.cancel()
        async with node(lab, "a", tmp_path) as one:
            assert one.driver_events == []
            assert one.driver.taken_over() == []
            await one.driver.stop(spec.guest)

    asyncio.run(main())
