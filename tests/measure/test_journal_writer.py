"""Group commit: no durable entry is lost, a slow disk delays no append, and a failure is reported once."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.live import HANG_S, until, wait_until

from testbed.errors import RunError
from testbed.measure import append_file
from testbed.measure.journal_writer import JournalWriter
from testbed.measure.rundir import RunDirectory
from testbed.run.events import Teardown
from testbed.run.parts import journal_parts


@contextmanager
def writing(path: Path, **options: object) -> Iterator[JournalWriter]:
    writer = JournalWriter(path, **{"part_bytes": 1 << 30, "every_s": 3600.0, **options})
    try:
        yield writer
    finally:
        writer.close()


def lines_of(path: Path) -> list[bytes]:
    return [line for file in journal_parts(path).each() for line in file]


class SlowDisk:
    """fdatasync blocks until the test continues it; `synced` are the lengths of the file that became durable."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at_disk, self.go_on = threading.Event(), threading.Event()
        self.synced: list[int] = []
        real = os.fdatasync

        def slow(fd: int) -> None:
            size = os.fstat(fd).st_size
            self.at_disk.set()
            self.go_on.wait(HANG_S)
            real(fd)
            self.synced.append(size)

        monkeypatch.setattr(append_file.os, "fdatasync", slow)


@pytest.mark.parametrize("at_once", [True, False])
def test_all_that_wait_in_one_turn_wait_for_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    disk = SlowDisk(monkeypatch)
    disk.go_on.set()
    path = tmp_path / "events.jsonl"

    async def act(writer: JournalWriter, number: int) -> int:
        await writer.durable(writer.append(b"%04d" % number, at_once=at_once))
        return disk.synced[-1]

    async def main() -> None:
        with writing(path) as writer:
            assert await asyncio.gather(*(act(writer, number) for number in range(100))) == [500] * 100
            assert len(disk.synced) == 1
            await writer.durable(50)
            assert len(disk.synced) == 1, "the entry is already durable"

    asyncio.run(main())
    assert lines_of(path) == [b"%04d\n" % number for number in range(100)]


@given(
    sizes=st.lists(st.tuples(st.integers(0, 40), st.booleans(), st.integers(0, 2)), max_size=30),
    part_bytes=st.integers(1, 100),
    at_once=st.booleans(),
)
def test_what_was_waited_for_is_on_disk(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, bool, int]], part_bytes: int, at_once: bool
) -> None:
    """Appends, some of which are awaited, with iterations of the event loop between them, and with any rotation."""
    path = tmp_path_factory.mktemp("run") / "events.jsonl"
    expected = [b"%d %s\n" % (number, b"x" * size) for number, (size, _, _) in enumerate(sizes)]

    async def main() -> None:
        with writing(path, part_bytes=part_bytes) as writer:

            async def wait(number: int) -> None:
                await writer.durable(number)
                assert lines_of(path)[:number] == expected[:number]

            waits = []
            for line, (_, is_waited_for, turns) in zip(expected, sizes, strict=True):
                number = writer.append(line[:-1], at_once=at_once)
                if is_waited_for:
                    waits.append(asyncio.create_task(wait(number)))
                for _ in range(turns):
                    await asyncio.sleep(0)
            await asyncio.gather(*waits)

    asyncio.run(main())
    assert lines_of(path) == expected


@pytest.mark.parametrize("at_once", [True, False])
def test_a_slow_disk_holds_up_who_waits_and_no_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    disk = SlowDisk(monkeypatch)
    path = tmp_path / "events.jsonl"

    async def main() -> None:
        with writing(path) as writer:
            first = asyncio.create_task(writer.durable(writer.append(b"first")))
            await until(disk.at_disk.is_set, "the disk")
            numbers = [writer.append(b"%d" % number, at_once=at_once) for number in range(1000)]
            assert numbers == list(range(2, 1002))
            if at_once:
                assert len(lines_of(path)) == 1001, "the kernel has all entries while the disk has only the first"
            last = asyncio.create_task(writer.durable(1001))
            await asyncio.sleep(0)
            assert not first.done()
            assert not last.done()
            disk.go_on.set()
            await asyncio.gather(first, last)
            assert len(disk.synced) == 2

    asyncio.run(main())


def test_entries_that_nobody_waits_for_are_written_and_made_durable_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    disk.go_on.set()
    path = tmp_path / "events.jsonl"
    with writing(path, every_s=0.01) as writer:
        writer.append(b"12345")
        wait_until(lambda: 6 in disk.synced, "the entry on disk")
    with writing(tmp_path / "lazy.jsonl") as writer:
        wait_until(lambda: not writer.append(b"x") or lines_of(tmp_path / "lazy.jsonl"), "entries at the kernel")


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("room", [0, 10, 95, 100, 109])
def test_a_full_disk_leaves_whole_entries_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, at_once: bool
) -> None:
    failures: list[OSError] = []
    write, left = os.write, [room]

    def full(fd: int, data: memoryview) -> int:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = write(fd, data[: left[0]])
        left[0] -= done
        return done

    path = tmp_path / "events.jsonl"

    async def main() -> None:
        with writing(path, on_failure=failures.append) as writer:
            with monkeypatch.context() as patch:
                patch.setattr(append_file.os, "write", full)
                lines = [b"line %04d" % number for number in range(20)]  # 10 bytes with its end
                numbers = [writer.append(line, at_once=at_once) for line in lines]
                waits = await asyncio.gather(*map(writer.durable, numbers), return_exceptions=True)
            assert {type(each) for each in waits} == {RunError}
            writer.append(b"late")  # there is space again, but the line would follow a gap
            with pytest.raises(RunError, match=r"events\.jsonl: cannot write: No space left on device"):
                writer.sync()
            with pytest.raises(RunError):
                await writer.durable(1)
            assert [error.errno for error in failures] == [errno.ENOSPC]
            assert lines_of(path) == [b"line %04d\n" % number for number in range(room // 10)]
            assert (writer.written, writer.lost) == (room // 10, 21 - room // 10)
            writer.go_on()
            writer.append(b"the end")
        assert lines_of(path)[room // 10 :] == [b"the end\n"]
        assert (writer.written, writer.lost) == (room // 10 + 1, 21 - room // 10)
        assert len(failures) == 1

    asyncio.run(main())


def test_a_broken_disk_fails_those_that_wait_although_every_write_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[OSError] = []

    def broken(_fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async def main() -> None:
        with writing(tmp_path / "events.jsonl", on_failure=failures.append) as writer:
            monkeypatch.setattr(append_file.os, "fdatasync", broken)
            with pytest.raises(RunError, match=r"events\.jsonl: cannot write: Input/output error"):
                await writer.durable(writer.append(b"line"))
        assert len(failures) == 1

    asyncio.run(main())


def test_a_wait_that_is_given_up_disturbs_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)

    async def main() -> None:
        with writing(tmp_path / "events.jsonl") as writer:
            number = writer.append(b"line")
            given_up, kept = (asyncio.create_task(writer.durable(number)) for _ in range(2))
            await until(disk.at_disk.is_set, "the disk")
            given_up.cancel()
            disk.go_on.set()
            await kept
            assert given_up.cancelled()

    asyncio.run(main())


def test_a_loop_that_ended_leaves_the_journal_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    path = tmp_path / "events.jsonl"

    async def give_up(writer: JournalWriter) -> None:
        waits = asyncio.create_task(writer.durable(writer.append(b"first")))
        await until(disk.at_disk.is_set, "the disk")
        del waits

    async def wait(writer: JournalWriter) -> None:
        await writer.durable(writer.append(b"second"))

    with writing(path) as writer:
        asyncio.run(give_up(writer))
        disk.go_on.set()
        asyncio.run(wait(writer))
    assert lines_of(path) == [b"first\n", b"second\n"]


def directory(tmp_path: Path, **options: object) -> RunDirectory:
    made = RunDirectory(tmp_path / "run", {}, **options)
    made.open()
    return made


def test_a_run_directory_numbers_its_entries_and_a_dry_run_waits_for_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(made: RunDirectory, is_there: Callable[[], bool]) -> None:
        numbers = [made.journal(Teardown(float(number), 0.0, elapsed_s=1.0)) for number in range(3)]
        assert numbers == [1, 2, 3]
        await made.durable(3)
        assert is_there()

    live = directory(tmp_path / "live")
    disk = SlowDisk(monkeypatch)
    disk.go_on.set()
    asyncio.run(main(live, lambda: len(disk.synced) == 1))
    disk.go_on.clear()
    dry = directory(tmp_path / "dry", is_dry=True)
    asyncio.run(main(dry, lambda: len(lines_of(dry.path / "events.jsonl")) == 3))
    disk.go_on.set()
    live.close()
    dry.close()


def test_after_a_failure_of_the_points_no_entry_is_durable(tmp_path: Path) -> None:
    made = directory(tmp_path)
    made._points.fail(tmp_path / "run" / "points.lp", OSError(errno.ENOSPC, "No space left on device"))
    assert made.journal(Teardown(1.0, 0.0, elapsed_s=1.0)) == 0
    with pytest.raises(RunError, match=r"points\.lp: cannot write: No space left on device"):
        asyncio.run(made.durable(0))
    assert "0 journal entries" in made.kept()
    assert "(1 and 0 lost)" in made.kept()
    made.close()


CHILD = """
import asyncio, sys
from pathlib import Path
from testbed.measure.journal_writer import JournalWriter
from testbed.measure.packer import Packer

async def main():
    packer = Packer()
    writer = JournalWriter(Path(sys.argv[1]), part_bytes=20_000, every_s=0.001, on_full=packer.put)
    number = 0
    while True:
        for _ in range(100):
            number = writer.append(b"%d" % (number + 1))
        await writer.durable(number)
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("groups", [1, 40, 200])
def test_a_killed_process_loses_nothing_that_was_waited_for(tmp_path: Path, groups: int) -> None:
    path = tmp_path / "events.jsonl"
    with subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for _ in range(groups):
            durable = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split("\n")[:-1]
        durable = int(rest[-1]) if rest else durable
    found = [int(line) for line in lines_of(path) if line.endswith(b"\n")]
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= durable
    if groups == 200:
        assert len(journal_parts(path).numbers()) >= 3
