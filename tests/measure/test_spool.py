"""The spool: appended lines are read back complete and in order, with any rotation, interruption or failure."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.live import HANG_S, wait_until

from testbed.errors import RunError, UserError
from testbed.measure import append_file
from testbed.measure.spool import START, Position, Spool, read_lines, segment_path, segments

LINE = st.text(st.characters(blacklist_characters="\n", blacklist_categories=("Cs",)), max_size=40)
STEPS = st.lists(
    st.one_of(st.tuples(st.just("append"), LINE, st.booleans()), st.just(("sync",)), st.just(("read",))), max_size=40
)


def follow(run: Path, position: Position) -> tuple[list[str], Position]:
    """Read from a position, and return the position of the next read."""
    found = list(read_lines(run, position))
    return [line for line, _ in found], found[-1][1] if found else position


@given(steps=STEPS, segment_bytes=st.integers(1, 200), cut_bytes=st.integers(0, 120))
def test_any_interleaving_is_read_back_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple], segment_bytes: int, cut_bytes: int
) -> None:
    run = tmp_path_factory.mktemp("run")
    spool = Spool(run, segment_bytes=segment_bytes, every_s=60)
    appended: list[str] = []
    at_least = 0  # number of lines that were handed over
    followed: list[str] = []
    position = START
    for step in steps:
        if step[0] == "append":
            spool.append(step[1], sync=step[2])
            appended.append(step[1])
            at_least = len(appended) if step[2] else at_least
        elif step[0] == "sync":
            spool.sync()
            at_least = len(appended)
        else:
            lines, position = follow(run, position)
            followed += lines
            assert followed == appended[: len(followed)]
            assert len(followed) >= at_least
    spool.close()
    followed += [line for line, _ in read_lines(run, position)]
    assert followed == appended
    files = segments(run)
    assert files == [segment_path(run, number) for number in range(1, len(files) + 1)]
    assert all(path.stat().st_size >= segment_bytes for path in files[:-1])

    last = files[-1].read_bytes()  # a crash removes the end of the last segment
    files[-1].write_bytes(last[: max(0, len(last) - cut_bytes)])
    before = sum(path.read_bytes().count(b"\n") for path in files)
    lines = [line for line, _ in read_lines(run)]
    assert lines == appended[:before]
    places = [START, *(place for _, place in read_lines(run))]
    for index in range(0, len(places), 7):
        assert [line for line, _ in read_lines(run, places[index])] == lines[index:]


def test_a_segment_does_not_grow_once_the_next_is_there(tmp_path: Path) -> None:
    spool = Spool(tmp_path, segment_bytes=1000, every_s=60)
    sizes: dict[Path, int] = {}
    for number in range(400):
        spool.append(f"line {number}", sync=True)
        for path in segments(tmp_path)[:-1]:
            assert sizes.setdefault(path, path.stat().st_size) == path.stat().st_size
    spool.close()
    assert len(sizes) >= 3
    assert [line for line, _ in read_lines(tmp_path)] == [f"line {number}" for number in range(400)]


def test_a_reader_that_follows_a_writer_misses_nothing(tmp_path: Path) -> None:
    """This includes lines that arrive between the read of the last segment and the begin of the next one."""
    spool = Spool(tmp_path, segment_bytes=2000, every_s=0.001)
    count = 20_000

    def write() -> None:
        for number in range(count):
            spool.append(str(number), sync=number % 97 == 0)
        spool.sync()

    writer = threading.Thread(target=write)
    writer.start()
    seen: list[str] = []
    position = START
    ends_s = time.monotonic() + HANG_S
    while len(seen) < count and time.monotonic() < ends_s:
        lines, position = follow(tmp_path, position)
        seen += lines
    writer.join()
    spool.close()
    assert seen == [str(number) for number in range(count)]
    assert len(segments(tmp_path)) > 10


def test_a_slow_disk_holds_up_no_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_disk, go_on = threading.Event(), threading.Event()

    def slow(_fd: int) -> None:
        at_disk.set()
        go_on.wait(HANG_S)

    spool = Spool(tmp_path, every_s=0.001)
    monkeypatch.setattr(append_file.os, "fdatasync", slow)
    spool.append("first", sync=True)
    assert at_disk.wait(HANG_S)
    for number in range(1000):
        spool.append(f"{number}", sync=number == 999)
    assert not go_on.is_set()
    assert len(list(read_lines(tmp_path))) == 1001  # the kernel has all lines while the disk has only the first
    go_on.set()
    spool.close()


def test_a_line_reaches_the_kernel_by_itself_and_is_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    sync = os.fdatasync
    monkeypatch.setattr(append_file.os, "fdatasync", lambda fd: (synced.append(os.fstat(fd).st_size), sync(fd)))
    spool = Spool(tmp_path, every_s=0.01)
    spool.append("1234567")
    wait_until(lambda: 8 in synced, "the point on disk")
    assert [line for line, _ in read_lines(tmp_path)] == ["1234567"]
    spool.close()


CHILD = """
import os, sys
from pathlib import Path
from testbed.measure.spool import Spool
spool = Spool(Path(sys.argv[1]), every_s=3600)
for number in range(500):
    spool.append(f"line {number}", sync=number == 499)
os.kill(os.getpid(), 9)
"""


def test_a_killed_process_loses_nothing_that_was_handed_over(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], check=False, timeout=HANG_S)
    assert ended.returncode == -9
    assert [line for line, _ in read_lines(tmp_path)] == [f"line {number}" for number in range(500)]


@pytest.mark.parametrize("room", [0, 10, 95, 100, 109])
def test_a_full_disk_leaves_whole_lines_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    told: list[RunError] = []
    write = os.write
    left = [room]

    def full(fd: int, data: memoryview) -> int:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = write(fd, data[: left[0]])
        left[0] -= done
        return done

    spool = Spool(tmp_path, on_failure=told.append, every_s=0.01)
    with monkeypatch.context() as patch:
        patch.setattr(append_file.os, "write", full)
        for number in range(20):
            spool.append(f"line {number:04}")  # 10 bytes with its end
        wait_until(lambda: told, "a reported failure")
    spool.append("late", sync=True)  # there is space again, but the line would follow a gap
    with pytest.raises(RunError, match=r"points\.lp: cannot write: No space left on device"):
        spool.sync()
    spool.close()
    assert len(told) == 1
    assert (tmp_path / "points.lp").stat().st_size == room // 10 * 10
    assert [line for line, _ in read_lines(tmp_path)] == [f"line {number:04}" for number in range(room // 10)]
    assert (spool.lines, spool.lost) == (21, 21 - room // 10)


def test_a_broken_disk_is_told_although_every_write_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[RunError] = []

    def broken(_fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    spool = Spool(tmp_path, on_failure=told.append, every_s=0.01)
    spool.sync()
    monkeypatch.setattr(append_file.os, "fdatasync", broken)
    spool.append("line", sync=True)
    wait_until(lambda: told, "a reported failure")
    spool.close()
    assert [str(error) for error in told] == [f"{tmp_path / 'points.lp'}: cannot write: Input/output error"]


def test_no_room_for_a_new_segment_keeps_the_full_one(tmp_path: Path) -> None:
    told: list[RunError] = []
    spool = Spool(tmp_path, on_failure=told.append, segment_bytes=20, every_s=60)
    (tmp_path / "points.2.lp").mkdir()
    for number in range(5):
        spool.append(f"line {number:04}", sync=True)
    spool.close()
    assert [str(error) for error in told] == [f"{tmp_path / 'points.2.lp'}: cannot write: File exists"]
    assert (tmp_path / "points.lp").read_text() == "line 0000\nline 0001\n"
    assert (spool.lines, spool.lost) == (5, 3)


def test_a_position_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"points\.lp: cannot read: .*; expected points of a run"):
        list(read_lines(tmp_path))
    (tmp_path / "points.lp").write_text("a\nb\n")
    assert [line for line, _ in read_lines(tmp_path, (1, 2))] == ["b"]
    with pytest.raises(UserError, match=r"points\.lp: 4 B: expected at least 5 B"):
        list(read_lines(tmp_path, (1, 5)))
    with pytest.raises(UserError, match=r"points\.2\.lp: cannot read"):
        list(read_lines(tmp_path, (2, 0)))


def test_segments_are_in_order_and_nothing_else_is_one(tmp_path: Path) -> None:
    for name in ("points.10.lp", "points.lp", "points.2.lp", "points.1.lp", "points.02.lp", "points.lp.part", "x.lp"):
        (tmp_path / name).touch()
    assert [path.name for path in segments(tmp_path)] == ["points.lp", "points.2.lp", "points.10.lp"]
    assert segments(tmp_path / "none") == []
