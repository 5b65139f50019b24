"""Real virtual machines on two private libvirtds: what only virtual machines can."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
from libvirt_box import driver_options, libvirt_box, needs_hypervisor

from node_agent.drivers.protocol import DriverError, DriverFacts, Happening, MigrationReport, NodeBudget
from testbed.bus.messages import GuestSpec, ProgramSpec

pytestmark = [needs_hypervisor, pytest.mark.slow]
WITHIN_S = 90.0


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    with libvirt_box(f"t{os.getpid():x}g", tmp_path_factory.mktemp("lab")) as journal:
        yield journal


@dataclass
class Node:
    """One node's driver in this process, and what its guests did."""

    driver: object
    facts: DriverFacts
    images: Path
    happenings: list[Happening]
    news: asyncio.Event

    async def until(self, guest: str, *events: str) -> Happening:
        """Wait for one of the events of a guest."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                for happening in self.happenings:
                    if happening.guest == guest and happening.event in events:
                        self.happenings.remove(happening)
                        return happening
                self.news.clear()
                await self.news.wait()

    async def work(self, spec: GuestSpec) -> None:
        """Start a guest, and wait for its first progress."""
        await self.driver.start(spec, 1.0, None)
        await self.until(spec.guest, "progress")

    def pid(self, guest: str) -> int:
        return self.driver._guests[guest]._vcpus.groups.pid

    def sample(self, guest: str):
        return next((sample for sample in self.driver.sample() if sample.guest == guest), None)


@contextlib.asynccontextmanager
async def node(lab: object, name: str, folder: Path, **options: str) -> AsyncIterator[Node]:
    from node_agent.drivers.virt.driver import LibvirtDriver

    driver = LibvirtDriver(**{**driver_options(lab, name), **options})
    images = folder / name / "images"
    here = Node(driver, DriverFacts((), {}), images, [], asyncio.Event())

    def hear(happening: Happening) -> None:
        here.happenings.append(happening)
        here.news.set()

    try:
        budget = NodeBudget(f"t{name}", 1.0, 1536, folder / name, images, "127.0.0.1", "dfrs-")
        here.facts = await driver.open(budget, hear)
        yield here
    finally:
        await driver.close()


def on_both(lab: object, folder: Path, play: Callable[[Node, Node], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        async with node(lab, "a", folder) as one, node(lab, "b", folder) as two:
            await play(one, two)
            assert one.driver.sample() == two.driver.sample() == []

    asyncio.run(main())


def serial(work_units: int, number: int = 0, memory_mib: int = 128) -> GuestSpec:
    program = ProgramSpec(name="eatcpu", work_units=work_units, units_per_iteration=50, seed=7)
    return GuestSpec(
        guest=f"dfrs-t-j{number}-t0", run="t", job=number, task=0, program=program, cpu_cores=1.0,
        memory_mib=memory_mib, address=f"10.77.1.{number + 1}/16",
    )  # fmt: skip


def parallel(work_units: int, ranks: int, topology: str = "ring") -> list[GuestSpec]:
    base = serial(1, 1)
    return [
        msgspec.structs.replace(
            base, guest=f"dfrs-t-j1-t{rank}", task=rank, memory_mib=144, address=f"10.77.2.{rank + 1}/16",
            program=ProgramSpec(
                name="patterns", work_units=work_units, units_per_iteration=50, seed=7, rank=rank, ranks=ranks,
                topology=topology, message_bytes=5000,
            ),
        )
        for rank in range(ranks)
    ]  # fmt: skip


async def start_job(members: list[tuple[Node, GuestSpec]]) -> None:
    await asyncio.gather(*(place.driver.start(spec, 1.0, None) for place, spec in members))
    lead, first = members[0]
    launch = await lead.driver.mpi_open(first.guest, {spec.guest: spec.address for _, spec in members})
    await asyncio.gather(*(place.driver.mpi_join(spec.guest, launch[spec.guest]) for place, spec in members))


async def pair_at_work(one: Node, two: Node, work_units: int) -> list[tuple[Node, GuestSpec]]:
    """Start a job with a member on each node; returns them when both have made progress."""
    members = list(zip((one, two), parallel(work_units, 2), strict=True))
    await start_job(members)
    for place, spec in members:
        await place.until(spec.guest, "progress")
    return members


async def migrate(one: Node, two: Node, spec: GuestSpec, cap_cores: float) -> MigrationReport:
    report = await one.driver.migrate(spec.guest, two.facts.migration_uri, 60, 20)
    await two.driver.adopt(spec, cap_cores)
    return report


async def ends(members: list[tuple[Node, GuestSpec]]) -> list[object]:
    results = []
    for place, spec in members:
        happening = await place.until(spec.guest, "done", "failed")
        assert happening.event == "done", happening
        assert happening.detail["units"] == spec.program.work_units
        results.append(happening.detail["checksum"])
    return results


def twin(spec: GuestSpec) -> str:
    """Return the checksum that the Python program of a task comes to."""
    from node_agent.programs.expected import expected_checksum
    from node_agent.programs.task import Task

    return expected_checksum(Task.from_spec(msgspec.to_builtins(spec)))


def test_a_job_saved_for_20_s_goes_on_with_one_member_on_the_other_node(lab: object, tmp_path: Path):
    async def play(one: Node, two: Node) -> None:
        members = await pair_at_work(one, two, 12_000)
        specs = [spec for _, spec in members]
        await asyncio.gather(*(place.driver.hold(spec.guest) for place, spec in members))
        images = [place.images / f"{spec.guest}.img" for place, spec in members]
        reports = await asyncio.gather(
            *(place.driver.save(spec.guest, None, image) for (place, spec), image in zip(members, images, strict=True))
        )
        assert all(report.bytes > 100 << 20 and len(report.digest) == 32 for report in reports)
        assert one.driver.sample() == two.driver.sample() == []
        await asyncio.sleep(20)  # what is tested: connections outlive it
        moved = [(two, specs[0]), (two, specs[1])]
        await asyncio.gather(
            *(place.driver.start(spec, 1.0, image) for (place, spec), image in zip(moved, images, strict=True))
        )
        assert [place.sample(spec.guest).state for place, spec in moved] == ["held", "held"]
        await asyncio.gather(*(place.driver.release(spec.guest) for place, spec in moved))
        assert await ends(moved) == [twin(spec) for spec in specs]

    on_both(lab, tmp_path, play)


async def held_and_given_up(one: Node, spec: GuestSpec, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a guest, hold it, and stop waiting for its save as soon as that is under way."""
    from node_agent.drivers.virt.qemu import Qemu

    loop, began, save = asyncio.get_running_loop(), asyncio.Event(), Qemu.save

    def told(self: Qemu, domain: object, image: Path) -> None:
        loop.call_soon_threadsafe(began.set)
        save(self, domain, image)

    monkeypatch.setattr(Qemu, "save", told)
    await one.driver.start(spec, 0.1, None)  # slow enough not to end before it is held
    await one.driver.hold(spec.guest)
    saving = asyncio.ensure_future(one.driver.save(spec.guest, None, image))
    await began.wait()
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving


def test_a_save_that_is_given_up_loses_nothing(lab: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def play(one: Node, two: Node) -> None:
        spec, image, there = serial(3000, memory_mib=768), one.images / "a.img", one
        await held_and_given_up(one, spec, image, monkeypatch)
        if one.driver.sample():  # it was aborted in time
            assert one.sample(spec.guest).state == "held"
            assert not image.exists()
        else:  # it was written before: who asks again is told
            there = two
            assert (await one.driver.save(spec.guest, None, image)).bytes == image.stat().st_size
            await two.driver.start(spec, 1.0, image)
        await there.driver.set_cap(spec.guest, 1.0)
        await there.driver.release(spec.guest)
        assert await ends([(there, spec)]) == [twin(spec)]

    on_both(lab, tmp_path, play)


def test_a_save_that_cannot_be_aborted_is_found_by_who_asks_again(
    lab: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def play(one: Node, two: Node) -> None:
        monkeypatch.setattr("node_agent.drivers.virt.qemu.Qemu.aborts_saves", False)  # as those of Xen cannot be
        spec, image = serial(3000), one.images / "a.img"
        await held_and_given_up(one, spec, image, monkeypatch)
        report = await one.driver.save(spec.guest, None, image)
        assert report.bytes == image.stat().st_size
        assert one.driver.sample() == []
        with pytest.raises(DriverError, match="is not here"):
            await one.driver.save(spec.guest, None, image)  # it was told once
        await two.driver.start(spec, 1.0, image)
        await two.driver.release(spec.guest)
        assert await ends([(two, spec)]) == [twin(spec)]

    on_both(lab, tmp_path, play)


@pytest.mark.parametrize(("ranks", "topology"), [(4, "all-to-all"), (3, "tree")])
def test_members_over_both_nodes_agree_on_every_message(lab: object, tmp_path: Path, ranks: int, topology: str):
    async def play(one: Node, two: Node) -> None:
        members = [((one, two)[rank % 2], spec) for rank, spec in enumerate(parallel(2000, ranks, topology))]
        await start_job(members)
        assert await ends(members) == [twin(spec) for _, spec in members]

    on_both(lab, tmp_path, play)


def test_a_guest_migrates_while_it_works(lab: object, tmp_path: Path):
    async def play(one: Node, two: Node) -> None:
        spec = serial(80_000, memory_mib=256)
        await one.work(spec)
        await one.driver.set_cap(spec.guest, 0.2)  # still at work when a migration on a busy machine is over
        report = await migrate(one, two, spec, 0.8)
        assert report.bytes > 200 << 20  # its memory is full of what cannot be compressed
        assert 0 < report.downtime_s < report.elapsed_s < 60
        assert one.driver.sample() == []
        await two.driver.adopt(spec, 0.9)  # asked twice, as after a lost answer
        assert two.sample(spec.guest).cap_cores == pytest.approx(0.9)
        await two.until(spec.guest, "progress")
        assert await ends([(two, spec)]) == [twin(spec)]
        assert one.happenings == []

    on_both(lab, tmp_path, play)


def test_a_rank_migrates_while_its_job_talks(lab: object, tmp_path: Path):
    async def play(one: Node, two: Node) -> None:
        specs = [spec for _, spec in await pair_at_work(one, two, 15_000)]
        await migrate(one, two, specs[0], 1.0)
        assert await ends([(two, spec) for spec in specs]) == [twin(spec) for spec in specs]

    on_both(lab, tmp_path, play)


def test_a_migration_that_cannot_succeed_leaves_the_guest_at_work(lab: object, tmp_path: Path):
    async def play(one: Node, two: Node) -> None:
        spec = serial(10_000_000, memory_mib=700)
        await one.work(spec)
        with pytest.raises(DriverError, match="still runs here"):
            await one.driver.migrate(spec.guest, "qemu+tcp://10.77.255.9/system#partition=&bridge=&node=x", 4, 3)
        await asyncio.to_thread(  # 5 MiB/s, so that it cannot be done before anybody looks
            subprocess.run,
            ["virsh", "-q", "-c", driver_options(lab, "a")["uri"], "migrate-setspeed", spec.guest, "5"],
            check=True, capture_output=True,
        )  # fmt: skip
        with pytest.raises(DriverError, match=r"longer than 0\.2 s; it still runs here"):
            await one.driver.migrate(spec.guest, two.facts.migration_uri, 0.2, 20)
        assert one.sample(spec.guest).state == "running"
        with pytest.raises(DriverError, match="not here"):
            await two.driver.adopt(spec, 1.0)
        done = one.sample(spec.guest).units_done
        async with asyncio.timeout(WITHIN_S):
            while one.sample(spec.guest).units_done <= done:  # noqa: ASYNC110  # beats set no event
                await asyncio.sleep(0.1)
        await one.driver.stop(spec.guest)

    on_both(lab, tmp_path, play)


def test_caps_are_what_the_kernel_measures(lab: object, tmp_path: Path):
    async def play(one: Node, two: Node) -> None:
        spec = serial(1_000_000)
        await one.work(spec)
        for cap_cores in (0.1, 0.3, 0.5, 0.7, 0.9):
            assert await one.driver.set_cap(spec.guest, cap_cores) == pytest.approx(cap_cores)
            await asyncio.sleep(0.3)  # the period in which it was set
            begin, begin_s = one.sample(spec.guest).cpu_s, time.monotonic()
            await asyncio.sleep(3.0)
            used = (one.sample(spec.guest).cpu_s - begin) / (time.monotonic() - begin_s)
            assert used <= cap_cores + 0.03, f"cap {cap_cores}: used {used:.3f}"
            assert used >= 0.5 * cap_cores, f"cap {cap_cores}: used {used:.3f}"  # other work may take its share
        await one.driver.stop(spec.guest)

    on_both(lab, tmp_path, play)


def test_a_cap_that_somebody_changes_is_noticed_and_mended(lab: object, tmp_path: Path):
    async def play(one: Node, two: Node) -> None:
        spec = serial(1_000_000)
        await one.driver.start(spec, 0.5, None)
        uri = driver_options(lab, "a")["uri"]
        await asyncio.to_thread(
            subprocess.run,
            ["virsh", "-q", "-c", uri, "schedinfo", spec.guest, "--live", "vcpu_quota=90000"],
            check=True, capture_output=True,
        )  # fmt: skip
        one.driver.sample()
        drift = await one.until(spec.guest, "drift")
        assert drift.detail == {"wanted": 0.5, "found": pytest.approx(0.9)}
        assert await one.driver.set_cap(spec.guest, 0.5) == pytest.approx(0.5)
        one.driver.sample()
        assert one.happenings == [] or all(happening.event == "progress" for happening in one.happenings)
        await one.driver.stop(spec.guest)

    on_both(lab, tmp_path, play)


def test_a_guest_that_is_killed_fails_alone(lab: object, tmp_path: Path):
    async def play(one: Node, two: Node) -> None:
        doomed, other = serial(1_000_000, 1), serial(8_000, 2)
        await asyncio.gather(one.driver.start(doomed, 0.5, None), one.driver.start(other, 0.5, None))
        one.driver.domain_stopped(other.guest)  # late word of an earlier domain of that name
        os.kill(one.pid(doomed.guest), signal.SIGKILL)
        failed = await one.until(doomed.guest, "failed", "done")
        assert failed.event == "failed"
        assert "ended by itself" in failed.detail["reason"]
        assert await ends([(one, other)]) == [twin(other)]

    on_both(lab, tmp_path, play)


def test_a_guest_that_falls_silent_is_told_with_its_last_words(lab: object, tmp_path: Path):
    async def play(one: Node, two: Node) -> None:
        spec = serial(1_000_000)
        one.driver._platform.patience = replace(one.driver._platform.patience, silence_s=1.5)
        await one.work(spec)
        os.kill(one.pid(spec.guest), signal.SIGSTOP)
        async with asyncio.timeout(30):
            while not any(happening.event == "failed" for happening in one.happenings):
                one.driver.sample()  # the agent does that each second
                await asyncio.sleep(0.2)
        assert "has not answered for" in (await one.until(spec.guest, "failed")).detail["reason"]

    on_both(lab, tmp_path, play)


def test_guests_outlive_their_libvirtd_that_is_killed(lab: object, tmp_path: Path):
    from testbed.box.hypervisor import Libvirtd

    async def play(one: Node, two: Node) -> None:
        spec = serial(40_000)
        await one.work(spec)
        await one.driver.set_cap(spec.guest, 0.05)  # it works for longer than libvirtd takes to come back
        place = next(place for place in lab.state.nodes if place.name == "a")  # type: ignore[attr-defined]
        daemon = Libvirtd(place, lab)  # type: ignore[arg-type]
        killed, emulator = daemon.process, one.pid(spec.guest)
        os.kill(killed.pid, signal.SIGKILL)
        await asyncio.to_thread(daemon.make)
        assert daemon.process != killed
        assert await one.driver.set_cap(spec.guest, 0.6) == pytest.approx(0.6)
        await one.driver.hold(spec.guest)
        await one.driver.release(spec.guest)
        await one.driver.set_cap(spec.guest, 1.0)
        assert one.pid(spec.guest) == emulator
        assert await ends([(one, spec)]) == [twin(spec)]

    on_both(lab, tmp_path, play)


def test_what_an_earlier_agent_left_is_removed(lab: object, tmp_path: Path):
    uri = driver_options(lab, "a")["uri"]

    def domains() -> list[str]:
        printed = subprocess.run(["virsh", "-q", "-c", uri, "list", "--all", "--name"], check=True, capture_output=True)
        return printed.stdout.decode().split()

    async def vanish() -> None:
        async with node(lab, "a", tmp_path) as one:
            await one.driver.start(serial(1_000_000), 1.0, None)
            await one.driver._hypervisor.close()  # as when the agent is killed: nobody cleans up
            one.driver._hypervisor = None
            for guest in one.driver._guests.values():
                guest.detach()

    async def come_back() -> None:
        async with node(lab, "a", tmp_path):
            assert domains() == []

    asyncio.run(vanish())
    assert domains() == [serial(1).guest]
    asyncio.run(come_back())
