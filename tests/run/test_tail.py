"""Following a file of lines in parts: each whole line once, during any rotation, rename or compression."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from queue import SimpleQueue

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.live import HANG_S

from testbed.measure.journal_writer import JournalWriter
from testbed.measure.packer import pack
from testbed.measure.spool import Spool, segments
from testbed.run.parts import journal_parts, packed, point_parts
from testbed.run.tail import Tail


def tail_of(path: Path) -> Tail:
    return Tail(journal_parts(path))


@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"d\ne", b"\n\n"]), max_size=30))
def test_a_tail_gives_each_whole_line_once(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("tail") / "file"
    tail, got = tail_of(path), []
    assert tail.read() == ([], False)
    for piece in pieces:
        with path.open("ab") as file:
            file.write(piece)
        lines, again = tail.read(3)
        got += lines
        assert not again
    while lines := tail.read(3)[0]:
        got += lines
    assert got == b"".join(pieces).split(b"\n")[:-1]


def test_a_file_that_was_replaced_or_cut_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\n")
    tail = tail_of(path)
    assert tail.read() == ([b"one", b"two"], False)
    path.write_bytes(b"new\n")
    assert tail.read() == ([b"new"], True)
    other = tmp_path / "other"
    other.write_bytes(b"longer than before\n")
    other.replace(path)
    assert tail.read() == ([b"longer than before"], True)


def test_segments_are_read_in_their_order_and_from_near_the_end(tmp_path: Path) -> None:
    (tmp_path / "points.lp").write_bytes(b"1\n2\n")
    tail = Tail(point_parts(tmp_path), 4 << 20)
    assert tail.read()[0] == [b"1", b"2"]
    with (tmp_path / "points.lp").open("ab") as file:
        file.write(b"3\n")
    (tmp_path / "points.2.lp").write_bytes(b"4\n")
    (tmp_path / "points.3.lp").write_bytes(b"5\n6")
    assert [tail.read()[0] for _ in range(4)] == [[b"3"], [b"4"], [b"5"], []]
    (tmp_path / "points.3.lp").write_bytes(b"5\n67\n")
    assert tail.read()[0] == [b"67"]
    long = tmp_path / "long"
    long.mkdir()
    (long / "points.lp").write_bytes(b"".join(b"%d\n" % number for number in range(1000)))
    assert Tail(point_parts(long), 11).read()[0] == [b"998", b"999"]


def test_a_tail_that_begins_near_the_end_begins_in_the_newest_part(tmp_path: Path) -> None:
    for number, name in enumerate(("points.lp", "points.2.lp", "points.3.lp"), 1):
        (tmp_path / name).write_bytes(b"%d\n" % number)
    pack(tmp_path / "points.lp")
    assert Tail(point_parts(tmp_path), 100).read()[0] == [b"3"]
    (tmp_path / "events.0001.jsonl").write_bytes(b"old\n")
    assert Tail(journal_parts(tmp_path / "events.jsonl"), 100).read()[0] == []
    (tmp_path / "events.jsonl").write_bytes(b"new\n")
    assert Tail(journal_parts(tmp_path / "events.jsonl"), 100).read()[0] == [b"new"]


def test_a_tail_that_is_far_behind_misses_nothing_of_what_is_compressed_before_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"1\n2\n3\n")
    tail = tail_of(path)
    assert tail.read(2)[0] == [b"1"]
    path.rename(tmp_path / "events.0001.jsonl")
    assert tail.read(2) == ([b"2"], False), "the moment without a growing file"
    path.write_bytes(b"4\n")
    pack(tmp_path / "events.0001.jsonl")
    assert tail.read(2) == ([b"3"], False)
    path.rename(tmp_path / "events.0002.jsonl")
    pack(tmp_path / "events.0002.jsonl")
    assert tail.read() == ([b"4"], False)
    assert tail.read() == ([], False), "the part after the last does not exist yet"
    path.write_bytes(b"5\n")
    assert tail.read() == ([b"5"], False)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.binary(max_size=12), min_size=1, max_size=4)),
        st.tuples(st.just("sync"), st.none()),
        st.tuples(st.just("pack"), st.none()),
        st.tuples(st.just("read"), st.integers(1, 40)),
    ),
    max_size=60,
)


@given(steps=STEPS, part_bytes=st.integers(1, 60), of_points=st.booleans())
def test_a_follower_under_any_interleaving_gets_each_line_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple], part_bytes: int, of_points: bool
) -> None:
    run = tmp_path_factory.mktemp("run")
    full: list[Path] = []
    if of_points:
        spool = Spool(run, segment_bytes=part_bytes, every_s=3600, on_full=full.append)
        parts, append, close, sync = point_parts(run), spool.append, spool.close, spool.sync
    else:
        writer = JournalWriter(run / "events.jsonl", part_bytes=part_bytes, every_s=3600, on_full=full.append)
        parts, close, sync = journal_parts(run / "events.jsonl"), writer.close, writer.sync

        def append(line: str) -> None:
            writer.append(line.encode(), at_once=True)

    tail = Tail(parts)
    appended: list[bytes] = []
    followed: list[bytes] = []
    durable = 0
    for what, value in steps:
        if what == "append":
            for content in value:
                append(content.hex())
                appended.append(content.hex().encode())
        elif what == "sync":
            sync()
            durable = len(appended)
        elif what == "pack" and full:
            pack(full.pop(0))
        elif what == "read":
            lines, again = tail.read(value)
            assert not again
            followed += lines
            assert followed == appended[: len(followed)]
            if not of_points:  # one read of points may continue in another part
                found = [line.rstrip(b"\n") for file in parts.each() for line in file]
                assert found == appended[: len(found)]
                assert len(found) >= durable
    close()
    while lines := tail.read()[0]:
        followed += lines
    assert followed == appended
    late, found = Tail(parts), []
    while lines := late.read(7)[0]:
        found += lines
    assert found == appended


@pytest.mark.parametrize("of_points", [False, True])
def test_a_follower_of_a_writer_that_rotates_and_compresses_misses_nothing(tmp_path: Path, of_points: bool) -> None:
    count = 20_000
    full: SimpleQueue[Path | None] = SimpleQueue()
    packer = threading.Thread(target=lambda: [pack(part) for part in iter(full.get, None)])
    packer.start()
    if of_points:
        spool = Spool(tmp_path, segment_bytes=4000, every_s=0.001, on_full=full.put)
        parts, close = point_parts(tmp_path), spool.close
    else:
        writer = JournalWriter(tmp_path / "events.jsonl", part_bytes=4000, every_s=0.001, on_full=full.put)
        parts, close = journal_parts(tmp_path / "events.jsonl"), writer.close

    def write() -> None:
        for number in range(count):
            if of_points:
                spool.append(str(number), sync=number % 97 == 0)
            else:
                writer.append(b"%d" % number)
                if number % 997 == 0:
                    writer.sync()
        close()

    thread = threading.Thread(target=write)
    thread.start()
    tail, followed = Tail(parts), []
    hangs_s = time.monotonic() + HANG_S
    while len(followed) < count and time.monotonic() < hangs_s:
        lines, again = tail.read(1000)
        assert not again
        followed += lines
        if not of_points and len(followed) % 50 == 0:
            found = [int(line) for file in parts.each() for line in file if line.endswith(b"\n")]
            assert found == list(range(len(found)))
    thread.join()
    full.put(None)
    packer.join()
    assert [int(line) for line in followed] == list(range(count))
    numbers = parts.numbers()[: -1 if of_points else None]
    assert len(numbers) > 5
    assert all(packed(parts.full(number)).exists() for number in numbers)
    if of_points:
        assert [path.name for path in segments(tmp_path)] == [parts.full(number).name for number in parts.numbers()]
