"""The process manager of ranks: its protocol, its answers, its connection."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.live import HANG_S

from node_agent.drivers.pmi.link import PmiLink
from node_agent.drivers.pmi.server import Barrier, PmiServer
from node_agent.drivers.pmi.wire import MOST_LINE_BYTES, LineReader, PmiError, parse
from testbed.bus.messages import RankKeys
from testbed.bus.mpi_barriers import MOST_BARRIERS
from testbed.bus.mpi_keys import MOST_KEYS

SESSION = "0123456789abcdef"
MAXES = "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024"
PEER = RankKeys(rank=1, keys={"-allgather-1-1": "0011"})


def server(rank: int = 0, ranks: int = 2) -> PmiServer:
    return PmiServer(rank, ranks, SESSION)


def put(key: str, value: str) -> bytes:
    return f"cmd=put kvsname=dfrs key={key} value={value}".encode()


def in_first_barrier(value: str = "0022") -> PmiServer:
    """Return the manager of a rank that waits in its first barrier."""
    found = server()
    assert found.take(put("-allgather-1-0", value)) == "cmd=put_result rc=0 msg=success"
    assert found.take(b"cmd=barrier_in") == Barrier(SESSION, 1, {"-allgather-1-0": value})
    return found


def get(found: PmiServer, key: str) -> str | Barrier | None:
    return found.take(f"cmd=get kvsname=dfrs key={key}".encode())


def test_no_two_jobs_have_the_same_key_space() -> None:
    """MPICH derives names of shared memory from the name of the key space."""
    spaces = {PmiServer(0, 2, session).take(b"cmd=get_my_kvsname") for session in (SESSION, SESSION[::-1])}
    assert len(spaces) == 2


def test_a_rank_is_served_from_its_start_to_its_end() -> None:
    found = server(rank=1, ranks=3)
    for line, answer in (
        ("cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"),
        ("cmd=get_maxes", MAXES),
        ("cmd=get_appnum ", "cmd=appnum appnum=0"),
        ("cmd=get_my_kvsname", f"cmd=my_kvsname kvsname=dfrs_{SESSION}"),
        ("cmd=get_universe_size", "cmd=universe_size size=3"),
        ("cmd=get kvsname=dfrs key=PMI_process_mapping", "cmd=get_result rc=0 msg=success value=(vector,(0,3,1))"),
        ("cmd=get kvsname=dfrs key=other", "cmd=get_result rc=-1 msg=key_not_found value=unknown"),
        ("cmd=finalize", "cmd=finalize_ack"),
    ):
        assert found.take(line.encode()) == answer
    assert not found.aborted
    assert found.take(b"cmd=abort exitcode=1 message=any text \xff at all") is None
    assert found.aborted


def test_keys_of_others_are_known_once_the_barrier_is_passed() -> None:
    found = in_first_barrier()
    with pytest.raises(PmiError, match="MPI speaks in barrier 1"):
        get(found, "-allgather-1-0")
    assert found.pass_barrier(SESSION, 1, [PEER], last=False) is None
    assert found.waiting
    assert found.pass_barrier(SESSION, 1, [], last=True) == "cmd=barrier_out"
    assert found.pass_barrier(SESSION, 1, [], last=True) is None, "the barrier is already passed"
    assert get(found, "-allgather-1-1") == "cmd=get_result rc=0 msg=success value=0011"
    assert get(found, "-allgather-1-0") == "cmd=get_result rc=0 msg=success value=0022"
    assert found.take(b"cmd=barrier_in") == Barrier(SESSION, 2, {}), "keys are published once"


def test_a_rank_that_came_from_another_node_goes_on_where_it_was() -> None:
    found = PmiServer(0, 2, SESSION, barriers=1)
    assert found.take(b"cmd=barrier_in") == Barrier(SESSION, 2, {})
    assert found.pass_barrier(SESSION, 2, [], last=True) == "cmd=barrier_out"


def test_a_pass_of_another_session_or_an_earlier_barrier_changes_nothing() -> None:
    found = in_first_barrier()
    assert found.pass_barrier("f" * 16, 1, [PEER], last=True) is None
    assert found.pass_barrier(SESSION, 0, [PEER], last=True) is None
    assert found.waiting
    with pytest.raises(PmiError, match="a pass of MPI barrier 2 for rank 0 in 1"):
        found.pass_barrier(SESSION, 2, [], last=True)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (RankKeys(rank=1, keys={"-allgather-1-0": "0033"}), "expected a key such as -allgather-1-1"),
        (RankKeys(rank=1, keys={"PMI_process_mapping": "(vector,(0,1,2))"}), "expected a key such as"),
        (RankKeys(rank=1, keys={"-allgather-1-1": "00\ncmd=abort"}), "expected bytes in hexadecimal"),
        (RankKeys(rank=1, keys={"-allgather-1-1": "000000"}), "of 3 bytes: expected 2 bytes as of rank 0 itself"),
        (RankKeys(rank=1, keys={"-allgather-1-1": "[60000]"}), "of 60000 bytes: expected at most 510"),
        (RankKeys(rank=1, keys={"-allgather-1-1": "[300]"}), "of 300 bytes: expected 2 bytes as of rank 0 itself"),
        (RankKeys(rank=1, keys={"-allgather-2-1": "0000"}), "of 2 bytes: expected 0 bytes as of rank 0 itself"),
        (RankKeys(rank=2, keys={"-allgather-1-2": "0000"}), "MPI keys of rank 2: expected a rank below 2"),
    ],
)
def test_keys_that_no_rank_would_publish_never_reach_mpi(keys: RankKeys, words: str) -> None:
    found = in_first_barrier()
    with pytest.raises(PmiError) as error:
        found.pass_barrier(SESSION, 1, [keys], last=True)
    assert words in str(error.value)
    assert found.waiting
    found.pass_barrier(SESSION, 1, [], last=True)
    for key in keys.keys:
        if key == "-allgather-1-0":
            assert get(found, key) == "cmd=get_result rc=0 msg=success value=0022", "the rank's own key"
        elif "\n" not in key and key != "PMI_process_mapping":
            assert get(found, key) == "cmd=get_result rc=-1 msg=key_not_found value=unknown"
    assert get(found, "PMI_process_mapping") == "cmd=get_result rc=0 msg=success value=(vector,(0,2,1))"


def test_keys_for_the_rank_itself_are_not_taken_from_others() -> None:
    found = in_first_barrier()
    found.pass_barrier(SESSION, 1, [RankKeys(rank=0, keys={"-allgather-1-0": "FFFF"})], last=True)
    assert get(found, "-allgather-1-0") == "cmd=get_result rc=0 msg=success value=0022"


@pytest.mark.parametrize(
    "line",
    [
        b"", b"hello", b"cmd=", b"cmd=spawn nprocs=1 execname=/bin/sh", b"mcmd=spawn", b"cmd=init pmi_version=2",
        b"cmd=init", b"cmd=put key=a", b"cmd=put value=a", b"cmd=get", b"cmd=get key=a\\ b", b"cmd=get  key=a",
        b"cmd=get_maxes\x00", b"cmd=get key=\xff",
        b"cmd=publish_name service=a port=b",
        b"cmd=put key=a value=" + b"0" * 1024, b"cmd=get_maxes" + b" a=b" * 9,
        b"cmd=put key=a value=" + b"0" * MOST_LINE_BYTES,
    ],
)  # fmt: skip
def test_what_no_rank_says_is_refused_in_one_line(line: bytes) -> None:
    with pytest.raises(PmiError) as error:
        server().take(line)
    assert "expected" in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 300


@given(st.binary(max_size=200) | st.from_regex(rb"cmd=[a-z_]{1,20}( [a-z]{1,9}=[!-~]{1,20}){0,4}", fullmatch=True))
def test_any_line_is_answered_in_one_line_or_refused(line: bytes) -> None:
    found = server()
    try:
        answer = found.take(line)
    except PmiError as error:
        answer = str(error)
    if isinstance(answer, str):
        assert "\n" not in answer
    assert len(answer.keys if isinstance(answer, Barrier) else []) == 0


def test_the_number_of_keys_and_of_barriers_is_bounded() -> None:
    found = server()
    for number in range(MOST_KEYS):
        found.take(put(f"k{number}", "0"))
    with pytest.raises(PmiError, match=f"MPI puts {MOST_KEYS + 1} keys"):
        found.take(put("one-more", "0"))
    found = PmiServer(0, 2, SESSION, barriers=MOST_BARRIERS)
    with pytest.raises(PmiError, match=f"MPI enters barrier {MOST_BARRIERS + 1}"):
        found.take(b"cmd=barrier_in")


@given(st.lists(st.integers(0, 60), max_size=6))
def test_lines_are_the_same_however_they_are_cut(cuts: list[int]) -> None:
    said = b"cmd=get_maxes\ncmd=put key=a value=b\n\ncmd=bar"
    reader = LineReader()
    edges = [0, *sorted(min(cut, len(said)) for cut in cuts), len(said)]
    lines = [line for begin, end in pairwise(edges) for line in reader.feed(said[begin:end])]
    assert lines == [b"cmd=get_maxes", b"cmd=put key=a value=b", b""]
    assert reader.feed(b"rier_in\n") == [b"cmd=barrier_in"]


def test_a_line_without_an_end_is_refused() -> None:
    reader = LineReader()
    reader.feed(b"x" * (MOST_LINE_BYTES - 1))
    with pytest.raises(PmiError, match="a line of 2048 bytes or more"):
        reader.feed(b"x")


def test_words_are_read_by_key() -> None:
    assert parse(b"cmd=put kvsname=a key=-allgather-1-0-seg-1/9 value=20[2]FF  ").words == {
        "kvsname": "a", "key": "-allgather-1-0-seg-1/9", "value": "20[2]FF",
    }  # fmt: skip


def with_link(tmp_path: Path, is_program: Callable[[int], bool], act: Callable[..., object]) -> None:
    async def main() -> None:
        barriers: list[Barrier] = []
        troubles: asyncio.Queue[str] = asyncio.Queue()
        link = PmiLink(server(), barriers.append, troubles.put_nowait)
        path = tmp_path / "1.pmi"
        async with asyncio.timeout(HANG_S):
            await link.listen(path, is_program)
            assert path.stat().st_mode & 0o777 == 0o600
            await act(link, path, barriers, troubles)
            link.close()
            assert not path.exists()

    asyncio.run(main())


def test_a_rank_is_served_at_a_socket_of_its_own(tmp_path: Path) -> None:
    async def act(link: PmiLink, path: Path, barriers: list[Barrier], troubles: asyncio.Queue[str]) -> None:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"cmd=get_appnum\n" + put("-allgather-1-0", "0022") + b"\n")
        assert await reader.readline() == b"cmd=appnum appnum=0\n"
        assert await reader.readline() == b"cmd=put_result rc=0 msg=success\n"
        other, other_writer = await asyncio.open_unix_connection(str(path))
        assert await other.read() == b""  # rejected
        other_writer.close()
        writer.write(b"cmd=barrier_in\ncmd=get_appnum\n")  # the second command is too early
        assert "MPI speaks in barrier 1" in await troubles.get()
        assert barriers == [Barrier(SESSION, 1, {"-allgather-1-0": "0022"})]
        assert await reader.read() == b""
        writer.close()
        link.pass_barrier(SESSION, 1, [PEER], last=True)  # the peer has disconnected

    with_link(tmp_path, lambda pid: pid == os.getpid(), act)


def test_another_process_is_turned_away(tmp_path: Path) -> None:
    async def act(_link: PmiLink, path: Path, _barriers: object, troubles: asyncio.Queue[str]) -> None:
        reader, writer = await asyncio.open_unix_connection(str(path))
        assert await reader.read() == b""
        writer.close()
        assert troubles.empty()

    with_link(tmp_path, lambda pid: pid != os.getpid(), act)


def test_a_rank_that_reads_no_answers_is_not_read_either(tmp_path: Path) -> None:
    async def main() -> None:
        link = PmiLink(server(), print, print)
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        asked = b"cmd=get_maxes\n" * 1000
        written = 0
        await link.take(ours)
        assert link._transport is not None
        with theirs:
            idle = 0
            while idle < 1000 and written < 64 << 20:  # iterations of the loop in which the socket accepts nothing
                try:
                    written += theirs.send(asked)
                    idle = 0
                except BlockingIOError:
                    idle += 1
                await asyncio.sleep(0)
            assert written < 16 << 20
            assert link._transport.get_write_buffer_size() < 8 << 20
            heard = 0
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(HANG_S):
                while heard < written // len(b"cmd=get_maxes\n") * (len(MAXES) + 1):  # it resumes where it stopped
                    heard += len(await loop.sock_recv(theirs, 1 << 20))
        link.close()

    asyncio.run(main())


def test_a_rank_that_inherits_its_end_is_served(tmp_path: Path) -> None:
    async def main() -> None:
        barriers: list[Barrier] = []
        link = PmiLink(server(), barriers.append, print)
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.setblocking(False)
            await link.take(ours)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(theirs, b"cmd=barrier_in\n")
            async with asyncio.timeout(HANG_S):
                while not barriers:  # noqa: ASYNC110  # a list sets no event
                    await asyncio.sleep(0)
                link.pass_barrier(SESSION, 1, [], last=True)
                assert await loop.sock_recv(theirs, 100) == b"cmd=barrier_out\n"
        link.close()

    asyncio.run(main())
