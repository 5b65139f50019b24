"""Real virtual machines on two private libvirtds: functions that only virtual machines have."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from support.agent.libvirt_nodes import (
    THROTTLED_CORES,
    THROTTLED_UNITS,
    Node,
    ends,
    finish,
    join,
    migrate,
    node,
    on_both,
    pair_at_work,
    parallel,
    serial,
    start_job,
    twin,
)
from support.libvirt_box import driver_options, libvirt_box, needs_hypervisor
from support.live import HANG_S, until

from node_agent.drivers.protocol import DriverError, DriverFacts
from node_agent.guests.image import current
from testbed.bus.messages import GuestSpec
from testbed.testing.accuracy import Accuracy, Window

pytestmark = [needs_hypervisor, pytest.mark.slow]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    with libvirt_box(f"t{os.getpid():x}g", tmp_path_factory.mktemp("lab")) as journal:
        yield journal


@pytest.mark.long
def test_a_job_saved_for_20_s_goes_on_with_one_member_on_the_other_node(lab: object, tmp_path: Path):
    async def play(one: Node, two: Node) -> None:
        members = await pair_at_work(one, two)
        specs = [spec for _, spec in members]
        await asyncio.gather(*(place.driver.hold(spec.guest) for place, spec in members))
        images = [place.images / f"{spec.guest}.img" for place, spec in members]
        reports = await asyncio.gather(
            *(place.driver.save(spec.guest, None, image) for (place, spec), image in zip(members, images, strict=True))
        )
        assert all(report.bytes > 100 << 20 and len(report.digest) == 32 for report in reports)
        assert one.driver.sample() == two.driver.sample() == []
        await asyncio.sleep(20)  # speed: the test is that connections outlive this time
        moved = [(two, specs[0]), (two, specs[1])]
        await asyncio.gather(
            *(
                place.driver.restore(spec, THROTTLED_CORES, image)
                for (place, spec), image in zip(moved, images, strict=True)
            )
        )
        assert [place.sample(spec.guest).state for place, spec in moved] == ["held", "held"]
        await asyncio.gather(*(place.driver.release(spec.guest) for place, spec in moved))
        assert await finish(moved) == [twin(spec) for spec in specs]

    on_both(lab, tmp_path, play)


async def held_and_given_up(one: Node, spec: GuestSpec, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a guest, hold it, and cancel the wait for its save as soon as the save is under way."""
    from node_agent.drivers.virt.qemu import Qemu

    loop, began, save = asyncio.get_running_loop(), asyncio.Event(), Qemu.save

    def told(self: Qemu, domain: object, image: Path) -> None:
        loop.call_soon_threadsafe(began.set)
        save(self, domain, image)

    monkeypatch.setattr(Qemu, "save", told)
    await one.driver.start(spec, THROTTLED_CORES)
    await one.driver.hold(spec.guest)
    saving = asyncio.ensure_future(one.driver.save(spec.guest, None, image))
    await began.wait()
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving


async def waits(place: Node, spec: GuestSpec, least_s: float) -> tuple[float, ...]:
    """Return the waits of a rank in the samples of its node, once they exceed a limit."""
    await until(lambda: sum(place.sample(spec.guest).waits_s) > least_s, f"waits of {spec.guest} beyond {least_s}")
    return place.sample(spec.guest).waits_s


@pytest.mark.long
def test_waits_are_counted_on_through_a_save_and_a_live_migration(lab: object, tmp_path: Path):
    """Rank 1 has half of the work of rank 0, so it waits for rank 0. Its waits are in its memory, and move with it."""

    async def play(one: Node, two: Node) -> None:
        assert "waits" in one.facts.capabilities
        specs = [
            msgspec.structs.replace(spec, program=msgspec.structs.replace(spec.program, imbalance="1/i"))
            for spec in parallel(THROTTLED_UNITS // 2, 2)
        ]
        await start_job([(one, spec) for spec in specs], THROTTLED_CORES)
        (before_s, own_s) = await waits(one, specs[1], 0.5)
        assert before_s > 0.5
        assert own_s == 0
        images = [one.images / f"{spec.guest}.img" for spec in specs]
        await asyncio.gather(*(one.driver.hold(spec.guest) for spec in specs))
        held_s = one.sample(specs[1].guest).waits_s[0]
        for spec, image in zip(specs, images, strict=True):
            await one.driver.save(spec.guest, None, image)
        assert one.driver.sample() == []
        for spec, image in zip(specs, images, strict=True):
            await two.driver.restore(spec, THROTTLED_CORES, image)
            assert two.sample(spec.guest).waits_s == (), "the new agent knows nothing yet"
        await asyncio.gather(*(two.driver.release(spec.guest) for spec in specs))
        restored_s = (await waits(two, specs[1], 0.0))[0]
        assert restored_s >= held_s
        await waits(two, specs[1], restored_s + 0.2)
        left_s = two.sample(specs[1].guest).waits_s[0]
        await migrate(two, one, specs[1], THROTTLED_CORES)
        assert (await waits(one, specs[1], 0.0))[0] >= left_s
        await waits(one, specs[1], left_s + 0.2)
        assert await finish([(two, specs[0]), (one, specs[1])]) == [twin(spec) for spec in specs]

    on_both(lab, tmp_path, play)


def test_waits_need_a_bridge_and_the_layer_in_the_image(lab: object, tmp_path: Path):
    image = current().folder
    other = tmp_path / "images" / "current"
    other.mkdir(parents=True)
    for file in image.iterdir():
        (other / file.name).symlink_to(file)
    manifest = json.loads((image / "manifest.json").read_text())
    (other / "manifest.json").unlink()
    (other / "manifest.json").write_text(json.dumps({key: manifest[key] for key in manifest if key != "waits"}))

    async def facts(**options: str) -> DriverFacts:
        async with node(lab, "a", tmp_path, **options) as one:
            return one.facts

    async def main() -> None:
        without_bridge, without_layer = await facts(bridge=""), await facts(image=str(other.parent))
        assert {"waits"} & {*without_bridge.capabilities, *without_layer.capabilities} == set()
        assert without_bridge.lacks["waits"] == "its guests have no network without a bridge"
        why = "the guest image has no library that counts the waits of ranks"
        assert without_layer.lacks == {"waits": why}

    asyncio.run(main())


def test_a_save_that_is_given_up_loses_nothing(lab: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def play(one: Node, two: Node) -> None:
        spec, image, there = serial(THROTTLED_UNITS, memory_mib=768), one.images / "a.img", one
        await held_and_given_up(one, spec, image, monkeypatch)
        if one.driver.sample():  # the save was aborted in time
            assert one.sample(spec.guest).state == "held"
            assert not image.exists()
        else:  # the image was complete before: a repeated save returns the report
            there = two
            assert (await one.driver.save(spec.guest, None, image)).bytes == image.stat().st_size
            await two.driver.restore(spec, THROTTLED_CORES, image)
        await there.driver.release(spec.guest)
        assert await finish([(there, spec)]) == [twin(spec)]

    on_both(lab, tmp_path, play)


def test_a_save_that_cannot_be_aborted_is_found_by_who_asks_again(
    lab: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def play(one: Node, two: Node) -> None:
        monkeypatch.setattr("node_agent.drivers.virt.qemu.Qemu.aborts_saves", False)  # as with Xen
        spec, image = serial(THROTTLED_UNITS), one.images / "a.img"
        await held_and_given_up(one, spec, image, monkeypatch)
        report = await one.driver.save(spec.guest, None, image)
        assert report.bytes == image.stat().st_size
        assert one.driver.sample() == []
        with pytest.raises(DriverError, match="is not here"):
            await one.driver.save(spec.guest, None, image)  # the report is returned only once
        await two.driver.restore(spec, THROTTLED_CORES, image)
        await two.driver.release(spec.guest)
        assert await finish([(two, spec)]) == [twin(spec)]

    on_both(lab, tmp_path, play)


class Relay:
    """A proxy between a driver and its libvirtd, which breaks the connection once the daemon has got given words."""

    def __init__(self, socket: str, words: bytes) -> None:
        self._socket = socket
        self._words = words
        self.cuts = 0
        self.links: set[asyncio.Task[None]] = set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.links.add(asyncio.current_task())
        of_daemon, to_daemon = await asyncio.open_unix_connection(self._socket)

        async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
                if sink is to_daemon and self._words in data and not self.cuts:
                    self.cuts += 1
                    return

        ways = [asyncio.ensure_future(pass_on(reader, to_daemon)), asyncio.ensure_future(pass_on(of_daemon, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (writer, to_daemon):
                end.transport.abort()
            await asyncio.sleep(0)  # both transports close their sockets in the next turn of the loop

    async def end(self) -> None:
        """Close all connections, also those that libvirt keeps until they are garbage-collected."""
        for link in self.links:
            link.cancel()
        await asyncio.gather(*self.links, return_exceptions=True)


def broken_off(
    lab: object, folder: Path, words: bytes, play: Callable[[Node, Node, Relay], Coroutine[None, None, None]]
) -> None:
    """Break the first node's connection once it has sent the words to its libvirtd.

    The same happens when an agent pauses for half a minute: libvirtd drops its connection, and completes the command.
    """

    async def main() -> None:
        address, _, socket = driver_options(lab, "a")["uri"].partition("socket=")
        relay = Relay(socket, words)
        async with (
            await asyncio.start_unix_server(relay, folder / "relay"),
            node(lab, "a", folder, uri=f"{address}socket={folder / 'relay'}") as one,
            node(lab, "b", folder) as two,
        ):
            await play(one, two, relay)
            assert one.driver.sample() == two.driver.sample() == []
        await relay.end()

    asyncio.run(main())


def test_a_save_that_the_connection_breaks_off_is_found_once_it_is_written(lab: object, tmp_path: Path):
    async def play(one: Node, two: Node, relay: Relay) -> None:
        spec, image = serial(THROTTLED_UNITS, memory_mib=512), one.images / "broken-off.img"
        await one.driver.start(spec, THROTTLED_CORES)
        await one.driver.hold(spec.guest)
        report = await one.driver.save(spec.guest, None, image)
        assert relay.cuts == 1
        assert report.bytes == image.stat().st_size
        assert one.driver.sample() == []
        await two.driver.restore(spec, THROTTLED_CORES, image)
        await two.driver.release(spec.guest)
        assert await finish([(two, spec)]) == [twin(spec)]

    broken_off(lab, tmp_path, b"broken-off.img", play)


def test_a_migration_that_the_connection_breaks_off_is_told_by_where_the_guest_is(lab: object, tmp_path: Path):
    async def play(one: Node, two: Node, relay: Relay) -> None:
        spec = serial(THROTTLED_UNITS, memory_mib=256)
        await one.work(spec)
        with pytest.raises(DriverError, match="it is not here any more"):
            await one.driver.migrate(spec.guest, two.destination, HANG_S, HANG_S)
        assert relay.cuts == 1
        await two.driver.adopt(spec, THROTTLED_CORES)
        assert await finish([(two, spec)]) == [twin(spec)]

    broken_off(lab, tmp_path, b"qemu+tls://", play)


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "topology"), [(4, "all-to-all"), (3, "tree")])
def test_members_over_both_nodes_agree_on_every_message(lab: object, tmp_path: Path, ranks: int, topology: str):
    async def play(one: Node, two: Node) -> None:
        members = [((one, two)[rank % 2], spec) for rank, spec in enumerate(parallel(2000, ranks, topology))]
        await start_job(members)
        assert await ends(members) == [twin(spec) for _, spec in members]

    on_both(lab, tmp_path, play)


def test_a_guest_boots_with_the_part_of_the_whole_node_and_works_with_its_share(lab: object, tmp_path: Path):
    async def play(one: Node, two: Node) -> None:
        members = [
            (place, msgspec.structs.replace(spec, share_cores=0.3))
            for place, spec in zip((one, two), parallel(2000, 2), strict=True)
        ]
        await asyncio.gather(*(place.driver.start(spec, 1.0) for place, spec in members))
        for place, spec in members:
            assert place.part_frac(spec.guest) == pytest.approx(1.0)
            assert place.sample(spec.guest).share_cores is None
        await join(members)
        for place, spec in members:
            await place.until(spec.guest, "progress")
            assert place.part_frac(spec.guest) == pytest.approx(0.3, abs=1e-3)
        assert await ends(members) == [twin(spec) for _, spec in members]

    on_both(lab, tmp_path, play)


def test_a_guest_migrates_while_it_works(lab: object, tmp_path: Path):
    async def play(one: Node, two: Node) -> None:
        spec = serial(THROTTLED_UNITS, memory_mib=256)
        await one.work(spec)
        report = await migrate(one, two, spec, 0.12)
        assert report.bytes > 200 << 20  # its memory is full of incompressible data
        assert 0 < report.downtime_s < report.elapsed_s
        assert one.driver.sample() == []
        await two.driver.adopt(spec, 0.14)  # repeated, as after a lost reply
        assert two.sample(spec.guest).cap_cores == pytest.approx(0.14)
        await two.until(spec.guest, "progress")
        assert await finish([(two, spec)]) == [twin(spec)]
        assert one.driver_events == []

    on_both(lab, tmp_path, play)


def virsh(lab: object, node: str, *arguments: str) -> None:
    command = ["virsh", "-q", "-c", driver_options(lab, node)["uri"], *arguments]
    subprocess.run(command, check=True, capture_output=True)


def test_only_an_emulated_guest_stands_still_while_it_is_copied(lab: object, tmp_path: Path):
    """QEMU misses some writes of an emulated guest during the migration: checksums were sometimes wrong."""
    import libvirt

    async def play(one: Node, two: Node) -> None:
        spec, halfway_bytes = serial(THROTTLED_UNITS, memory_mib=256), 128 << 20
        await one.work(spec)
        await asyncio.to_thread(virsh, lab, "a", "migrate-setspeed", spec.guest, "5")  # MiB/s: its end is far away
        moving = asyncio.ensure_future(migrate(one, two, spec, THROTTLED_CORES))
        domain = one.driver._guests[spec.guest].on_domain
        while (await domain(lambda it: it.jobStats(), HANG_S)).get("data_remaining", 0) < halfway_bytes:
            assert not moving.done()
            await asyncio.sleep(0.01)
        state, _ = await domain(lambda it: it.state(), HANG_S)
        seen_s = time.monotonic()
        assert (await domain(lambda it: it.jobStats(), HANG_S))["data_remaining"] > halfway_bytes
        emulated = "accel:tcg" in one.facts.capabilities
        assert (state == libvirt.VIR_DOMAIN_PAUSED) == emulated
        await asyncio.to_thread(virsh, lab, "a", "migrate-setspeed", spec.guest, "1000")
        stood_still_s = time.monotonic() - seen_s
        report = await moving
        assert report.downtime_s < report.elapsed_s
        if emulated:  # the reported downtime covers the whole pause
            assert report.downtime_s > stood_still_s
        assert await finish([(two, spec)]) == [twin(spec)]

    on_both(lab, tmp_path, play)


def test_a_rank_migrates_while_its_job_talks(lab: object, tmp_path: Path):
    async def play(one: Node, two: Node) -> None:
        specs = [spec for _, spec in await pair_at_work(one, two)]
        await migrate(one, two, specs[0], THROTTLED_CORES)
        assert await finish([(two, spec) for spec in specs]) == [twin(spec) for spec in specs]

    on_both(lab, tmp_path, play)


def test_a_migration_that_cannot_succeed_leaves_the_guest_at_work(lab: object, tmp_path: Path):
    async def play(one: Node, two: Node) -> None:
        spec = serial(memory_mib=700)
        await one.work(spec)
        host = "10.77.255.9"
        uri = two.destination.uri.replace(two.destination.host, host)
        nowhere = msgspec.structs.replace(two.destination, uri=uri, host=host)
        with pytest.raises(DriverError, match="still runs here"):
            await one.driver.migrate(spec.guest, nowhere, 4, 3)
        # 5 MiB/s, so that it cannot be done before the test acts
        await asyncio.to_thread(virsh, lab, "a", "migrate-setspeed", spec.guest, "5")
        with pytest.raises(DriverError, match=r"longer than 0\.2 s; it still runs here"):
            await one.driver.migrate(spec.guest, two.destination, 0.2, HANG_S)
        assert one.sample(spec.guest).state == "running"
        with pytest.raises(DriverError, match="not here"):
            await two.driver.adopt(spec, 1.0)
        done = one.sample(spec.guest).units_done
        await until(lambda: one.sample(spec.guest).units_done > done, "progress after the migration")
        await one.driver.stop(spec.guest)

    on_both(lab, tmp_path, play)


def test_caps_are_what_the_kernel_measures(lab: object, tmp_path: Path, accuracy: Accuracy):
    async def play(one: Node, two: Node) -> None:
        spec = serial()
        await one.work(spec)
        for cap_cores in (0.1, 0.3, 0.5, 0.7, 0.9):
            assert await one.driver.set_cap(spec.guest, cap_cores) == pytest.approx(cap_cores)
            await asyncio.sleep(0.3)  # speed: the period in which it was set
            window, begin_s = Window(), time.monotonic()
            begin = one.sample(spec.guest).cpu_s
            await asyncio.sleep(3.0)  # speed: the length of the measurement
            used_s = one.sample(spec.guest).cpu_s - begin
            # the CPU time was read between the two readings of the clock, so no pause of this process breaks the bound
            elapsed_s = time.monotonic() - begin_s
            assert used_s <= cap_cores * elapsed_s + 0.1, f"cap {cap_cores}: used {used_s:.3f} s of {elapsed_s:.3f} s"
            accuracy.check(f"used of {cap_cores} cores", used_s / elapsed_s, 0.8 * cap_cores, cap_cores + 0.03, window)
        await one.driver.stop(spec.guest)

    on_both(lab, tmp_path, play)


def test_a_cap_that_somebody_changes_is_noticed_and_mended(lab: object, tmp_path: Path):
    async def play(one: Node, two: Node) -> None:
        spec = serial()
        await one.driver.start(spec, 0.5)
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
        assert one.driver_events == [] or all(driver_event.event == "progress" for driver_event in one.driver_events)
        await one.driver.stop(spec.guest)

    on_both(lab, tmp_path, play)


def test_a_guest_that_is_killed_fails_alone(lab: object, tmp_path: Path):
    async def play(one: Node, two: Node) -> None:
        doomed, other = serial(number=1), serial(THROTTLED_UNITS, 2)
        await asyncio.gather(*(one.driver.start(spec, THROTTLED_CORES) for spec in (doomed, other)))
        one.driver.domain_stopped(other.guest)  # a late event of an earlier domain with that name
        os.kill(one.pid(doomed.guest), signal.SIGKILL)
        failed = await one.until(doomed.guest, "failed", "done")
        assert failed.event == "failed"
        assert "ended by itself" in failed.detail["reason"]
        assert await finish([(one, other)]) == [twin(other)]

    on_both(lab, tmp_path, play)


def test_a_guest_that_falls_silent_is_told_with_its_last_words(lab: object, tmp_path: Path):
    from node_agent.drivers.virt.recovery import Recovery

    async def play(one: Node, two: Node) -> None:
        spec = serial()
        await one.work(spec)
        guest = one.driver._guests[spec.guest]
        os.kill(one.pid(spec.guest), signal.SIGSTOP)
        guest._recovery = Recovery(asyncio.get_running_loop().time(), replace(guest._timeouts, silence_s=1.5))

        def failed() -> bool:
            one.driver.sample()  # the agent does that each second
            return any(driver_event.event == "failed" for driver_event in one.driver_events)

        await until(failed, "word of a guest that is silent")
        assert "has not answered for" in (await one.until(spec.guest, "failed")).detail["reason"]

    on_both(lab, tmp_path, play)


def test_guests_outlive_their_libvirtd_that_is_killed(lab: object, tmp_path: Path):
    from testbed.lab.box.hypervisor import Libvirtd

    async def play(one: Node, two: Node) -> None:
        spec = serial(THROTTLED_UNITS)
        await one.work(spec)
        place = next(place for place in lab.state.nodes if place.name == "a")  # type: ignore[attr-defined]
        daemon = Libvirtd(place, lab)  # type: ignore[arg-type]
        killed, emulator = daemon.process, one.pid(spec.guest)
        os.kill(killed.pid, signal.SIGKILL)
        await asyncio.to_thread(daemon.make)
        assert daemon.process != killed
        assert await one.driver.set_cap(spec.guest, 0.12) == pytest.approx(0.12)
        await one.driver.hold(spec.guest)
        await one.driver.release(spec.guest)
        assert one.pid(spec.guest) == emulator
        assert await finish([(one, spec)]) == [twin(spec)]

    on_both(lab, tmp_path, play)


@pytest.mark.long
def test_the_rate_at_which_a_guest_writes_is_measured_while_it_runs(lab: object, tmp_path: Path):
    async def play(one: Node, two: Node) -> None:
        spec = msgspec.structs.replace(serial(THROTTLED_UNITS), writes=True)
        await one.driver.start(spec, THROTTLED_CORES)

        await one.driver.refresh()
        await one.driver._dirty_rates.settled()
        assert 0 <= one.sample(spec.guest).dirty_mib_per_s <= spec.memory_mib
        await one.driver.hold(spec.guest)
        await one.driver.refresh()
        assert one.sample(spec.guest).dirty_mib_per_s is None, "it writes nothing"
        await one.driver.stop(spec.guest)

    on_both(lab, tmp_path, play)
