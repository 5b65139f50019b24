"""Parts of the process driver, tested alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import os
import signal
import socket
import subprocess
from pathlib import Path

import psutil
import pytest
from support.agent.process_suite import ProcessSuite
from support.live import until

from node_agent.drivers.caps.duty import DutyCaps
from node_agent.drivers.pmi.server import PmiServer
from node_agent.drivers.process import ProcessDriver
from node_agent.drivers.procs.child import Child
from node_agent.drivers.procs.guest import ProcessGuest
from node_agent.drivers.procs.guest_record import GuestRecord, State, decode_record
from node_agent.drivers.procs.keeping import Kept, Left
from node_agent.drivers.procs.link import GuestLink
from node_agent.drivers.procs.log import LOG_BYTES, Log
from node_agent.drivers.procs.records import ProcessRecords
from node_agent.drivers.protocol import DriverError, DriverEvent, NodeBudget
from node_agent.guests.channel import ChannelError, Message, encode
from node_agent.programs import segments
from testbed.bus.messages import MPI_BARRIER
from testbed.host.process_identity import start_ticks


def test_a_log_is_bounded_and_remembers_the_end(tmp_path):
    log = Log(tmp_path / "a.log")
    for _ in range(40):
        log.write(b"x" * 50_000 + b"\n")
    log.write(b"the\n\nend\n")
    assert (tmp_path / "a.log").stat().st_size == LOG_BYTES
    assert log.tail(2) == "the | end"


def test_a_child_is_heard_to_the_end_and_its_exit_is_told(tmp_path):
    async def scenario() -> None:
        heard: list[bytes] = []
        child = Child(["sh", "-c", "yes | head -c 300000; exit 7"], {"PATH": "/usr/bin:/bin"}, tmp_path, heard.append)
        assert await child.exited == 7
        assert len(b"".join(heard)) == 300_000
        child = Child(["sleep", "infinity"], {"PATH": "/usr/bin:/bin"}, tmp_path, heard.append)
        child.kill()
        assert await child.exited == -9

    asyncio.run(scenario())


def calibrating_here() -> list[psutil.Process]:
    """Return the processes that calibrate for this one."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # the process has ended, or has no command line yet
            if "calibrate" in child.cmdline():
                found.append(child)
    return found


def test_a_calibration_that_is_given_up_ends_its_process(tmp_path):
    async def scenario() -> None:
        complaints: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
        driver = ProcessDriver(caps="duty")
        await driver.open(NodeBudget("n", 1.0, 640, tmp_path, tmp_path / "images", "127.0.0.1", "dfrs-"), print)
        calibrating = asyncio.create_task(driver.calibrate(3600.0))
        seen: list[psutil.Process] = []
        await until(lambda: seen.extend(calibrating_here()) or seen, "the process that calibrates")
        (child,) = seen
        calibrating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calibrating
        assert not child.is_running()
        assert calibrating_here() == []
        await driver.close()
        assert complaints == []

    asyncio.run(scenario())


def test_only_what_an_earlier_agent_started_is_killed(tmp_path):
    path = tmp_path / "processes.json"
    with subprocess.Popen(["sleep", "infinity"]) as ours, subprocess.Popen(["sleep", "infinity"]) as reused:
        earlier = ProcessRecords(path)
        earlier.add(ours.pid)
        earlier.add(reused.pid)
        content = json.loads(path.read_text(encoding="utf-8"))
        content["started"][str(reused.pid)] -= 1  # the same id, but of a process that started at another time
        path.write_text(json.dumps(content), encoding="utf-8")
        assert ProcessRecords(path).left().words() == [f"process {ours.pid}"]
        assert ours.poll() is None
        assert list(ProcessRecords(path).kill_left().started) == [ours.pid]
        assert ours.wait() == -9
        assert reused.poll() is None
        reused.kill()
    assert not path.exists()


def test_a_process_that_ends_with_one_that_is_killed_is_among_what_was_removed(monkeypatch, tmp_path):
    """As a program whose keeper is killed first: it may have ended before its own kill."""
    path = tmp_path / "processes.json"
    with subprocess.Popen(["sleep", "infinity"]) as keeper, subprocess.Popen(["sleep", "infinity"]) as program:
        earlier = ProcessRecords(path)
        earlier.add(keeper.pid)
        earlier.add(program.pid)
        send = signal.pidfd_send_signal

        def send_and_end_the_other(pidfd: int, number: int) -> None:
            send(pidfd, number)
            program.kill()
            program.wait()

        monkeypatch.setattr(signal, "pidfd_send_signal", send_and_end_the_other)
        found = ProcessRecords(path).left()
        assert found.words() == [f"process {keeper.pid}", f"process {program.pid}"]
        assert ProcessRecords(path).kill_left() == found
        assert keeper.wait() == -9


def test_shared_memory_is_removed_where_it_was_written_down_alone(tmp_path):
    path = tmp_path / "processes.json"
    ours, others = (Path(f"/dev/shm/mpich_test_{os.getpid()}_{name}") for name in ("ours", "others"))  # noqa: S108  # where MPI puts it
    elsewhere = tmp_path / "mpich_elsewhere"
    try:
        with ours.open("wb"), others.open("wb"):  # open, so that no agent of another test treats them as abandoned
            elsewhere.touch()
            earlier = ProcessRecords(path)
            earlier.share([ours, elsewhere])
            assert ProcessRecords(path).left().segments == (ours,)
            assert ProcessRecords(path).kill_left().words() == [f"shared memory {ours}"]
            assert [file.exists() for file in (ours, others, elsewhere)] == [False, True, True]
            assert ProcessRecords(path).left().words() == []
    finally:
        for file in (ours, others):
            file.unlink(missing_ok=True)


def test_shared_memory_is_abandoned_once_no_process_has_it_open_or_mapped(monkeypatch, tmp_path):
    monkeypatch.setattr(segments, "SEGMENTS", tmp_path)
    opened, mapped, left, other = (tmp_path / name for name in ("mpich_o", "mpich_m", "mpich_l", "other"))
    for file in (opened, mapped, left, other):
        file.write_bytes(b"x")
    made_unix_s = left.stat().st_ctime
    with opened.open("rb"):
        with mapped.open("rb") as file:
            memory = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
        with memory:
            assert segments.abandoned_segments() == {left}
            assert segments.abandoned_segments(made_unix_s) == {left}
            assert segments.abandoned_segments(made_unix_s + 60) == set()  # made before
        assert segments.abandoned_segments() == {mapped, left}
    assert segments.abandoned_segments() == {opened, mapped, left}


def test_a_segment_that_cannot_be_removed_keeps_nobody_from_ending(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As if another user has a file with this name, because the folder is sticky."""
    foreign, own = tmp_path / "mpich_a", tmp_path / "mpich_b"
    foreign.mkdir()  # `unlink` does not remove a folder
    own.touch()
    segments.remove_segments([foreign, own, tmp_path / "mpich_gone"])
    assert list(tmp_path.iterdir()) == [foreign]
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [f"{foreign} was not removed"]


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"boot": "x", "started": {"1": "one"}}', '{"started": 3}'])
def test_damaged_records_kill_nothing(tmp_path, content):
    path = tmp_path / "processes.json"
    path.write_text(content, encoding="utf-8")
    assert ProcessRecords(path).kill_left().words() == []
    assert start_ticks(1) is not None


def test_a_link_takes_one_program_and_tells_nonsense_and_the_end(tmp_path):
    async def scenario() -> None:
        heard: list[Message | ChannelError] = []
        closed = asyncio.Event()
        link = GuestLink(tmp_path / "1.sock", heard.append, closed.set)
        await link.listen()
        with pytest.raises(DriverError, match="no program is connected"):
            link.send("hold")
        reader, writer = await asyncio.open_unix_connection(str(link.path))
        writer.write(encode("held", at=3) + b"nonsense\n")
        second, second_writer = await asyncio.open_unix_connection(str(link.path))
        assert await second.read() == b""  # rejected
        second_writer.close()
        link.send("release")
        assert await reader.readline() == encode("release")
        writer.close()
        await closed.wait()
        assert heard[0] == Message("held", {"at": 3})
        assert isinstance(heard[1], ChannelError)
        link.close()
        assert not link.path.exists()

    asyncio.run(scenario())


def test_every_record_of_a_rank_that_is_taken_over_has_its_process_manager(tmp_path):
    """The next agent may be killed after any message that it reads, also after the first."""
    records: list[GuestRecord] = []
    told: list[DriverEvent] = []

    class KeepsRecords:
        lost = False

        def send(self, order, _fds=()):
            if "record" in order:
                records.append(decode_record(order["record"]))

    async def scenario(pid: int) -> None:
        ours, theirs = socket.socketpair()
        kept = Kept(KeepsRecords(), "a.1")
        kept.pid = pid
        spec, log = ProcessSuite().job(2)[0], tmp_path / "a.log"
        guest = ProcessGuest(
            spec, 1.0, None, tmp_path / "a.sock", log, DutyCaps(), ProcessRecords(tmp_path / "pids"),
            told.append, lambda _guest: None, kept=kept,
        )  # fmt: skip
        manager = PmiServer(0, 2, "s", barriers=3, waiting=True)
        record = GuestRecord(spec, 1.0, State.RUNNING, True, str(log), 0.0, pid=pid, pmi=manager)
        heard = encode("released", at=1) + encode("held", at=2) + encode("error", message="no")
        with ours:
            channels = {"control": theirs.detach()}
            await guest.adopt(record, Left("a.1", pid, None, "", record.encode(), heard, b"", channels), kept)
            guest._link.close()
        assert len(records) >= 3
        assert [each.pmi for each in records] == [manager] * len(records)
        assert [event.detail["number"] for event in told if event.event == MPI_BARRIER] == [3]

    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True) as program:
        asyncio.run(scenario(program.pid))


def test_a_socket_path_that_is_too_long_is_told():
    with pytest.raises(DriverError, match="expected a path of at most 99 bytes"):
        GuestLink(Path("/tmp") / ("x" * 90) / "1.sock", print, print)  # noqa: S108  # nothing is made there


def test_programs_are_reached_by_sockets_of_this_user_only(tmp_path):
    async def scenario() -> None:
        link = GuestLink(tmp_path / "1.sock", print, print)
        await link.listen()
        assert link.path.stat().st_mode & 0o777 == 0o600
        assert link.path.is_socket()
        link.close()
        with socket.socket(socket.AF_UNIX) as late, pytest.raises(FileNotFoundError):
            late.connect(str(link.path))

    asyncio.run(scenario())
