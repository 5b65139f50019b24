"""Journal and points in parts: every reader reads them all, in order, and a crash at any step loses no line."""

from __future__ import annotations

import errno
import gzip
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.control import rehearsal as control_rehearsal
from support.live import wait_until
from support.report.rehearsed_run import rehearse

from testbed.errors import RunError, UserError
from testbed.measure.frames import load_journal, load_points
from testbed.measure.journal_writer import JournalWriter
from testbed.measure.packer import Packer, pack
from testbed.measure.rundir import RunDirectory, read_journal
from testbed.measure.shipping_batches import SegmentReader, bytes_left, next_batch, points_left
from testbed.measure.spool import read_lines, segments
from testbed.run.events import Teardown
from testbed.run.journal import convert, encode, read_events, seal
from testbed.run.parts import exists, has_journal, journal_parts, open_part, packed, point_parts, size_bytes

STEPS = ("open", "write", "fdatasync", "fsync", "rename", "unlink")


class KilledError(BaseException):
    """The process is killed."""


@contextmanager
def broken(monkeypatch: pytest.MonkeyPatch, at: int, error: Callable[[], BaseException], *, for_ever: bool) -> Iterator:
    """Let system calls from number `at` on fail, or only that one; yields the list of calls."""
    called: list[str] = []

    def wrap(name: str) -> Callable:
        real = getattr(os, name)

        def call(*args: object, **options: object) -> object:
            called.append(name)
            if len(called) - 1 == at or (for_ever and len(called) - 1 > at):
                raise error()
            return real(*args, **options)

        return call

    with monkeypatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, wrap(name))
        yield called


def lines_of(path: Path) -> list[bytes]:
    return [line for file in journal_parts(path).each() for line in file]


# --- a crash or a broken disk at each step -----------------------------------------------------------------


@pytest.mark.parametrize("is_kill", [True, False])
def test_a_kill_or_an_error_at_any_step_of_compressing_leaves_every_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_kill: bool
) -> None:
    lines = [b"%d\n" % number for number in range(1000)]
    for at in range(20):
        path = tmp_path / str(at) / "events.jsonl"
        path.parent.mkdir()
        path.write_bytes(lines[-1])
        part = journal_parts(path).full(1)
        part.write_bytes(b"".join(lines[:-1]))
        error = KilledError if is_kill else lambda: OSError(errno.EIO, "Input/output error")
        ended = None
        with broken(monkeypatch, at, error, for_ever=is_kill) as called:
            try:
                pack(part)
            except (KilledError, OSError) as caught:
                ended = caught
        assert lines_of(path) == lines, called
        if ended is None:
            assert len(called) == at
            assert {"fsync", "rename", "unlink"} <= set(called)
            assert sorted(each.name for each in path.parent.iterdir()) == ["events.0001.jsonl.gz", "events.jsonl"]
            return
        if exists(part) and part.exists():
            pack(part)  # as a later attempt does
        assert lines_of(path) == lines
        assert not part.exists()
    raise AssertionError("the loop never ended")


@pytest.mark.parametrize("is_kill", [True, False])
def test_a_kill_or_an_error_at_any_step_of_a_rotation_loses_no_durable_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_kill: bool
) -> None:
    monkeypatch.setattr(JournalWriter, "_serve", lambda _self: None)  # this thread commits, step by step
    rotations = 0
    for at in range(200):
        path = tmp_path / str(at) / "events.jsonl"
        path.parent.mkdir()
        failures: list[OSError] = []
        error = KilledError if is_kill else lambda: OSError(errno.ENOSPC, "No space left on device")
        appended = durable = 0
        writer = JournalWriter(path, part_bytes=20, every_s=3600, on_failure=failures.append)
        ended = False
        with broken(monkeypatch, at, error, for_ever=is_kill) as called:
            try:
                for number in range(12):
                    appended += 1
                    writer.append(b"line %d" % number, at_once=True)
                    if number % 3 == 2:
                        writer.sync()
                        durable = appended
            except KilledError:
                ended = True
            except RunError:
                assert writer.failure is not None
                ended = True
        ended |= bool(failures)
        found = lines_of(path) if has_journal(path.parent) else []
        assert found == [b"line %d\n" % number for number in range(len(found))], called
        assert durable <= len(found) <= appended
        if not is_kill:
            assert len(failures) == ended
            assert len(found) == writer.written
            assert writer.written + writer.lost == appended
            assert path.exists()
            if ended:
                writer.go_on()
                writer.append(b"the end")
                writer.close()
                assert lines_of(path) == [*found, b"the end\n"]
        rotations = max(rotations, len(journal_parts(path).numbers()))
        writer.close()
        if not ended:
            assert rotations == 4
            return
    raise AssertionError("the loop never ended")


# --- readers ------------------------------------------------------------------------------------------------


def test_every_reader_reads_all_parts_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    rehearse(whole)
    opens = RunDirectory.open
    monkeypatch.setattr(RunDirectory, "open", lambda self: (setattr(self, "_part_bytes", 8000), opens(self))[1])
    monkeypatch.setattr(Packer, "put", lambda _self, part: pack(part))
    journals = RunDirectory.journal
    monkeypatch.setattr(RunDirectory, "journal", lambda self, event: (journals(self, event), self.sync())[0])
    rehearse(cut)
    journal = cut / "events.jsonl"
    assert len(journal_parts(journal).numbers()) > 3
    assert all(packed(journal_parts(journal).full(number)).exists() for number in journal_parts(journal).numbers())
    assert len(segments(cut)) > 3
    assert packed(cut / "points.lp").exists()

    found, expected = read_journal(journal), read_journal(whole / "events.jsonl")
    assert [entry["kind"] for entry in found] == [entry["kind"] for entry in expected]
    assert [entry.get("trace_s") for entry in found] == [entry.get("trace_s") for entry in expected]
    assert [seal(encode(event)) for event in read_events(journal)] == [line.rstrip(b"\n") for line in lines_of(journal)]
    assert load_journal(cut).height == len(found)
    points = [line for line, _ in read_lines(cut)]
    assert len(points) == len(list(read_lines(whole)))
    frames, frames_of_whole = load_points(cut), load_points(whole)
    assert {name: frame.height for name, frame in frames.items()} == {
        name: frame.height for name, frame in frames_of_whole.items()
    }
    places = [place for _, place in read_lines(cut)]
    for index in range(0, len(places), 97):
        assert next(iter(read_lines(cut, places[index])), ("",))[0] == [*points, ""][index + 1]


def test_the_scenario_says_how_large_a_part_is_and_intents_are_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    init = JournalWriter.__init__

    def remember(self: JournalWriter, path: Path, **options: Any) -> None:
        sizes.append(options["part_bytes"])
        init(self, path, **options)

    monkeypatch.setattr(JournalWriter, "__init__", remember)
    _, journal = control_rehearsal.rehearse(tmp_path, control_rehearsal.five_jobs(), run={"part_mib": 3})
    assert sizes == [3 << 20]

    monkeypatch.setattr(JournalWriter, "_serve", lambda _self: None)
    run = RunDirectory(tmp_path / "run", {})
    run.open()
    intents = [convert(entry) for entry in journal if entry["kind"] == "intent"]
    assert {intent.verb for intent in intents} >= {"start", "cap", "save", "restore"}
    for intent in intents:
        run.journal(intent)
        written = len(lines_of(run.path / "events.jsonl"))
        assert (written == intents.index(intent) + 1) == (intent.verb != "cap")
    run.close()


@pytest.mark.parametrize("keeps_reader", [True, False])
def test_batches_go_on_in_and_over_compressed_segments(tmp_path: Path, keeps_reader: bool) -> None:
    lines = [b"point %d\n" % number for number in range(300)]
    for number in range(3):
        segment = point_parts(tmp_path).full(number + 1)
        segment.write_bytes(b"".join(lines[number * 100 : number * 100 + 100]))
        if number < 2:
            pack(segment)
    reader = SegmentReader() if keeps_reader else None
    at, read = (1, 0), b""
    assert points_left(tmp_path, *at) == 300
    assert bytes_left(tmp_path, *at) == sum(map(len, lines))
    while batch := next_batch(tmp_path, *at, 7, 60, reader):
        at, read = (batch.segment, batch.end_bytes), read + batch.lines
        assert points_left(tmp_path, *at) == 300 - read.count(b"\n")
        assert bytes_left(tmp_path, *at) == sum(map(len, lines)) - len(read)
        if reader and read.count(b"\n") % 5 == 0:  # a batch that was not acknowledged is read again
            assert next_batch(tmp_path, 1, 0, 1, 60, reader).lines == lines[0]
    assert read == b"".join(lines)
    if reader:
        reader.close()


def test_a_part_has_its_size_and_its_lines_compressed_or_not(tmp_path: Path) -> None:
    part = tmp_path / "points.lp"
    part.write_bytes(b"one\ntwo\n" * 1000)
    assert size_bytes(part) == 8000
    pack(part)
    assert not part.exists()
    assert size_bytes(part) == 8000
    with open_part(part) as file:
        assert file.seek(7996) == 7996
        assert file.read() == b"two\n"
    with pytest.raises(FileNotFoundError, match=r"points\.2\.lp'"):
        open_part(tmp_path / "points.2.lp")


def test_a_packer_compresses_in_order_and_ends_with_the_run(tmp_path: Path) -> None:
    content = os.urandom(40 << 20).replace(b"\n", b"x") + b"\n"
    packer, first, second = Packer(), tmp_path / "points.lp", tmp_path / "points.2.lp"
    first.write_bytes(b"one\n")
    second.write_bytes(content)
    packer.put(first)
    packer.put(second)
    wait_until(lambda: list(tmp_path.glob("points.2.lp.gz*")), "the second part under way")
    assert not first.exists()
    packer.close()
    packer.close()
    assert {each.name for each in tmp_path.iterdir()} - {"points.2.lp", "points.2.lp.gz"} == {"points.lp.gz"}
    with open_part(first) as one, open_part(second) as two:
        assert (one.read(), two.read()) == (b"one\n", content)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run", {}, part_bytes=100)
    run.open()
    for number in range(40):
        run.journal(Teardown(float(number), 0.0, elapsed_s=1.0))
        run.sync()
    run.close()
    journal = run.path / "events.jsonl"
    numbers = journal_parts(journal).numbers()
    assert len(numbers) > 5
    assert [event.t_s for event in read_events(journal)] == list(range(40))
    third = journal_parts(journal).full(3)
    third.unlink(missing_ok=True)  # both exist if `close` ended the packer just before it would have removed this one
    packed(third).unlink(missing_ok=True)
    with pytest.raises(UserError, match=r"events\.0003\.jsonl: missing: expected it before events\.0004\.jsonl"):
        list(read_events(journal))


def test_a_torn_or_broken_part_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = tmp_path / "events.jsonl"
    line = encode(Teardown(1.0, 0.0, elapsed_s=1.0)) + b"\n"
    journal.write_bytes(line + line[:10])
    with caplog.at_level(logging.WARNING):
        assert [event.t_s for event in read_events(journal)] == [1.0]
    assert caplog.messages == [f"{journal}:2: cut off after 10 B: left out"]
    part = tmp_path / "events.0001.jsonl.gz"
    whole = gzip.compress(line * 100)
    part.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="cannot read: Compressed file ended before the end-of-stream marker"):
        list(read_events(journal))
    part.write_bytes(b"no gzip file")
    with pytest.raises(UserError, match=r"cannot read: Not a gzipped file"):
        list(read_events(journal))
    part.write_bytes(gzip.compress(line + b"{\n"))
    with pytest.raises(UserError, match=r"events\.0001\.jsonl\.gz:2: not a JSON object"):
        list(read_events(journal))
