"""The keeper of an agent's programs, tested alone."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import termios
from array import array
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
from support.agent.fence_file import fence
from support.live import HANG_S, until

from node_agent.drivers.procs import keeper
from node_agent.drivers.procs.keeper import without_old_progress
from node_agent.drivers.procs.keeping import Keeping, Kept
from node_agent.drivers.procs.log import LOG_BYTES
from node_agent.drivers.protocol import DriverError
from node_agent.guests.channel import encode
from testbed.host.process_identity import start_ticks

ENV = {"PATH": "/usr/bin:/bin"}


def play(folder: Path, work: Callable[[Keeping], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        keeping = await Keeping.open(folder, HANG_S)
        try:
            await work(keeping)
        finally:
            await keeping.close()
        assert start_ticks(keeping.pid) is None
        assert not (folder / keeper.SOCKET).exists()

    asyncio.run(main())


async def next_agent(keeping: Keeping, folder: Path) -> Keeping:
    """Play the next agent after one that was killed."""
    keeping.disconnect()
    return await Keeping.open(folder, HANG_S)


def sh(text: str) -> list[str]:
    return ["/bin/sh", "-c", text]


def progress(units: int, longest_s: float) -> bytes:
    return encode("progress", units=units, mono_ns=1, steps=1, longest_s=longest_s, compute_s=1.0, comm_s=0.0)


def test_a_program_is_started_and_its_end_and_its_output_are_told(tmp_path: Path) -> None:
    async def work(keeping: Keeping) -> None:
        kept = keeping.new("a")
        await kept.spawn(sh("pwd; yes | head -c 2000000; echo the end; exit 7"), ENV, tmp_path, tmp_path / "a.log")
        assert await kept.exited == 7
        assert kept.tail.endswith("the end\n")
        written = (tmp_path / "a.log").read_text()
        assert written.startswith(f"{tmp_path}\n")
        assert len(written) == LOG_BYTES
        kept.drop()
        await until(lambda: start_ticks(kept.pid) is None and not Path(f"/proc/{kept.pid}").exists(), "its end")

    play(tmp_path, work)


def test_a_program_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    async def work(keeping: Keeping) -> None:
        with pytest.raises(DriverError, match=r"/nowhere/program: No such file or directory"):
            await keeping.new("a").spawn(["/nowhere/program"], ENV, tmp_path, tmp_path / "a.log")
        with pytest.raises(DriverError, match="No such file or directory"):
            await keeping.new("b").spawn(sh("true"), ENV, tmp_path / "nowhere", tmp_path / "b.log")

    play(tmp_path, work)


def test_a_kill_reaches_all_that_a_program_has_started(tmp_path: Path) -> None:
    async def work(keeping: Keeping) -> None:
        kept = keeping.new("a")
        command = "sleep infinity & echo $! > pid.part; mv pid.part pid; wait"
        await kept.spawn(sh(command), ENV, tmp_path, tmp_path / "a.log")
        await until((tmp_path / "pid").exists, "the program's own process")
        inner = int((tmp_path / "pid").read_text())
        kept.kill()
        assert await kept.exited == -signal.SIGKILL
        await until(lambda: start_ticks(inner) is None, "its end")

    play(tmp_path, work)


async def linked(keeping: Keeping, guest: str, channel: str, folder: Path) -> tuple[Kept, socket.socket]:
    """Return a guest, and its end of a channel."""
    kept = keeping.new(guest)
    await kept.spawn(sh("sleep infinity"), ENV, folder, folder / f"{guest}.log")
    ours, theirs = socket.socketpair()
    with ours:
        kept.store(channel, ours.fileno())
    kept.note("{}", 0, None, freeze=False, files=[])
    theirs.setblocking(False)
    return kept, theirs


def test_messages_wait_for_the_next_agent_and_old_progress_is_left_out(tmp_path: Path) -> None:
    async def work(keeping: Keeping) -> None:
        kept, guest = await linked(keeping, "a", "control", tmp_path)
        keeping.disconnect()
        sent = 0
        with guest:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(guest, encode("held", at=3))
            for number in range(20_000):  # more than a socket holds
                await loop.sock_sendall(guest, progress(number, 9.0 if number == 5 else 0.5))
                sent += 1
            await loop.sock_sendall(guest, encode("saved", bytes=1, digest="x", run_on_s=0.0, write_s=0, sync_s=0))
            await loop.sock_sendall(guest, b'{"kind":"do')
        again = await Keeping.open(tmp_path, HANG_S)
        (left,) = again.left
        lines = left.heard.split(b"\n")
        assert [json.loads(line)["kind"] for line in lines[:-1]] == ["held", "progress", "saved"]
        assert json.loads(lines[1])["units"] == sent - 1
        assert json.loads(lines[1])["longest_s"] == 9.0
        assert lines[-1] == b'{"kind":"do'
        assert left.pid == kept.pid
        assert os.read(left.channels["control"], 1) == b""  # the connection is closed
        left.close()
        await again.close()

    play(tmp_path, work)


def test_messages_wait_until_an_agent_has_processed_them(tmp_path: Path) -> None:
    async def work(keeping: Keeping) -> None:
        _, guest = await linked(keeping, "a", "control", tmp_path)
        with guest:
            guest.sendall(encode("held", at=3))
            await heard(keeping, guest)
            second = await next_agent(keeping, tmp_path)  # this agent is killed before it has read them
            third = await next_agent(second, tmp_path)
            (left,) = third.left
            assert left.heard == encode("held", at=3)
            left.close()
            third.adopt(left).heard()
            fourth = await next_agent(third, tmp_path)
            assert [each.heard for each in fourth.left] == [b""]
            for each in (*second.left, *fourth.left):
                each.close()
            await fourth.close()

    play(tmp_path, work)


async def heard(keeping: Keeping, guest: socket.socket) -> None:
    """Disconnect as a killed agent does, and return once the keeper has read all messages of the guest."""
    keeping.disconnect()
    unread = array("i", [1])
    while unread[0]:
        fcntl.ioctl(guest, termios.TIOCOUTQ, unread)
        await asyncio.sleep(0)  # polls until the keeper has read, which no event reports


def test_a_program_that_floods_its_channel_is_bounded(tmp_path: Path) -> None:
    async def work(keeping: Keeping) -> None:
        _, guest = await linked(keeping, "a", "control", tmp_path)
        keeping.disconnect()
        sent = 0
        with guest:
            while True:  # until neither the keeper nor the socket accepts more
                try:
                    async with asyncio.timeout(1.0):  # speed: ends a wait for space that never becomes free
                        await asyncio.get_running_loop().sock_sendall(guest, b"x" * 4096)
                except TimeoutError:
                    break
                sent += 4096
        assert sent < 4 * keeper.MOST_HEARD_BYTES
        again = await Keeping.open(tmp_path, HANG_S)
        assert len(again.left[0].heard) <= keeper.MOST_HEARD_BYTES + 65536
        again.left[0].close()
        await again.close()

    play(tmp_path, work)


def test_a_request_of_a_rank_is_answered_once_whatever_happens_to_agents(tmp_path: Path) -> None:
    async def work(keeping: Keeping) -> None:
        kept, rank = await linked(keeping, "a", "pmi", tmp_path)
        heard: list[bytes] = []
        kept.on_request = heard.append
        loop = asyncio.get_running_loop()
        with rank:
            await loop.sock_sendall(rank, b"cmd=one\ncmd=two\n")
            await until(lambda: b"".join(heard) == b"cmd=one\ncmd=two\n", "the requests")
            kept.note('"first"', 8, "answer=one\n", freeze=False, files=[])
            again = await next_agent(keeping, tmp_path)
            (left,) = again.left
            assert (left.record, left.request) == ('"first"', b"cmd=two\n")
            left.close()
            assert await loop.sock_recv(rank, 100) == b"answer=one\n"
            again.adopt(left).note('"second"', 8, "answer=two\n", freeze=False, files=[])
            assert await loop.sock_recv(rank, 100) == b"answer=two\n"
            last = await next_agent(again, tmp_path)
            (left,) = last.left
            assert (left.record, left.request) == ('"second"', b"")
            left.close()
            await last.close()

    play(tmp_path, work)


def test_what_happens_before_a_guest_is_adopted_is_not_lost(tmp_path: Path) -> None:
    async def work(keeping: Keeping) -> None:
        kept, rank = await linked(keeping, "a", "pmi", tmp_path)
        again = await next_agent(keeping, tmp_path)
        (left,) = again.left
        left.close()
        pidfd = os.pidfd_open(kept.pid)
        with rank:
            await asyncio.get_running_loop().sock_sendall(rank, b"cmd=one\n")
            os.kill(kept.pid, signal.SIGKILL)
            await until(lambda: select.select([pidfd], [], [], 0)[0], "the end of the program")
            for name in ("b", "c"):  # the answer to the second order arrives after both messages
                await again.new(name).spawn(sh("sleep infinity"), ENV, tmp_path, tmp_path / f"{name}.log")
            adopted = again.adopt(left)
            assert adopted.exited.result() == -signal.SIGKILL
            assert adopted.serve(lambda _data: None) == b"cmd=one\n"
        os.close(pidfd)
        await again.close()

    play(tmp_path, work)


def test_a_keeper_ends_at_once_with_an_agent_that_has_no_guests(tmp_path: Path) -> None:
    async def main() -> None:
        keeping = await Keeping.open(tmp_path, HANG_S)
        kept = keeping.new("a")
        await kept.spawn(sh("true"), ENV, tmp_path, tmp_path / "a.log")
        await kept.exited
        kept.drop()
        again = await next_agent(keeping, tmp_path)
        assert again.pid != keeping.pid
        await until(lambda: start_ticks(keeping.pid) is None, "the end of the first keeper")
        await again.close()

    asyncio.run(main())


def test_files_of_guests_go_with_a_keeper_that_is_ended(tmp_path: Path) -> None:
    async def main() -> None:
        keeping = await Keeping.open(tmp_path, HANG_S)
        kept = keeping.new("a")
        await kept.spawn(sh("sleep infinity"), ENV, tmp_path, tmp_path / "a.log")
        (tmp_path / "segment").touch()
        kept.note("{}", 0, None, freeze=False, files=[str(tmp_path / "segment")])
        again = await next_agent(keeping, tmp_path)
        again.left[0].close()
        again.disconnect()
        os.kill(again.pid, signal.SIGTERM)
        await until(lambda: start_ticks(kept.pid) is None, "the end of the program")
        await until(lambda: start_ticks(again.pid) is None, "the end of the keeper")
        await until(lambda: not (tmp_path / "segment").exists(), "the end of its file")

    asyncio.run(main())


def test_progress_that_is_no_progress_stays_as_it_is() -> None:
    lines = b'{"kind":"progress"\n{"kind":"progress","units":1}\n'
    assert without_old_progress(lines) == lines
    assert without_old_progress(progress(1, 0.0)) == progress(1, 0.0)


def test_a_keeper_without_an_agent_kills_the_programs_whose_fence_falls_even_stopped_ones(tmp_path: Path) -> None:
    async def work(keeping: Keeping) -> None:
        fence(tmp_path, a=3600.0, b=3600.0)
        kept = {name: keeping.new(name) for name in ("a", "b", "c")}  # c has no fence
        for name, each in kept.items():
            await each.spawn(sh("sleep infinity"), ENV, tmp_path, tmp_path / f"{name}.log")
        os.kill(kept["a"].pid, signal.SIGSTOP)
        keeping.disconnect()
        fence(tmp_path, a=0.3, b=3600.0)  # the renewal for guest a is missing
        await until(lambda: start_ticks(kept["a"].pid) is None, "the end of a")
        again = await Keeping.open(tmp_path, HANG_S)
        assert {left.key.partition(".")[0]: left.code for left in again.left} == {"a": -9, "b": None, "c": None}
        await again.close()

    play(tmp_path, work)


STOPPED_AGENT = """
import asyncio, os, signal, sys
from pathlib import Path
from node_agent.drivers.procs.keeping import Keeping

async def main():
    folder = Path(sys.argv[1])
    keeping = await Keeping.open(folder)
    for name in sys.argv[2:]:
        kept = keeping.new(name)
        await kept.spawn(["/bin/sleep", "infinity"], {}, folder, folder / f"{name}.log")
        print(kept.pid, flush=True)
    await asyncio.to_thread(os.kill, os.getpid(), signal.SIGSTOP)

asyncio.run(main())
"""


def test_a_keeper_kills_the_programs_of_an_agent_that_is_stopped(tmp_path: Path) -> None:
    fence(tmp_path, a=1.0, b=3600.0)
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED_AGENT, tmp_path, "a", "b"], stdout=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stdout is not None
        try:
            pids = [int(agent.stdout.readline()) for _ in "ab"]
            os.waitpid(agent.pid, os.WUNTRACED)
            asyncio.run(until(lambda: start_ticks(pids[0]) is None, "the end of a"))
            assert start_ticks(pids[1]) is not None
        finally:
            agent.kill()

    async def end() -> None:
        again = await Keeping.open(tmp_path, HANG_S)
        assert {left.key.partition(".")[0]: left.code for left in again.left} == {"a": -9, "b": None}
        await again.close()

    asyncio.run(end())


def test_a_keeper_waits_for_no_agent_that_does_not_read(tmp_path: Path) -> None:
    """Each end message has the last output, and a socket holds few such messages."""

    async def work(keeping: Keeping) -> None:
        kept = [keeping.new(f"g{number}") for number in range(40)]
        for each in kept:
            await each.spawn(sh("head -c 4096 /dev/urandom; exit 3"), ENV, tmp_path, tmp_path / "a.log")
        fence(tmp_path, last=1.0)
        last = keeping.new("last")
        await last.spawn(sh("sleep infinity"), ENV, tmp_path, tmp_path / "last.log")
        while start_ticks(last.pid) is not None:  # a loop that is stuck would not end this
            select.select([], [], [], 0.05)
        assert [await each.exited for each in kept] == [3] * 40
        assert await last.exited == -9

    play(tmp_path, work)
