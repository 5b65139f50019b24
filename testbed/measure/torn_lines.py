"""Removal of incomplete data after the last whole line of a run's journal and points, which a crash has left.

A killed process leaves at most one partial line. A loss of power may leave more: a file system can keep the length of a
file whose last blocks were never written.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import UserError
from testbed.measure.append_file import sync_directory
from testbed.measure.line_protocol import LineError, parse_line
from testbed.run.journal import is_whole
from testbed.run.parts import journal_parts, point_parts

_MOST_TORN_BYTES = 64 << 20  # more than a controller writes between two syncs of its files
_BLOCK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Torn:
    """The bytes that were removed from the end of a file."""

    path: Path
    bytes: int

    def __str__(self) -> str:
        return f"{self.path.name}: a last line that was cut off, {self.bytes} B, was removed"


def cut_torn_lines(run: Path) -> list[Torn]:
    """Truncate journal and points of a run without a controller after their last whole line; return the removals.

    Raises `UserError` for a file whose end was damaged by something other than a crash.
    """
    journal = journal_parts(run / "events.jsonl").path
    points = point_parts(run)
    last = max(points.numbers(), default=0)
    files: list[tuple[Path, Callable[[bytes], bool]]] = [(journal, is_whole)]
    if last:
        files.append((points.growing(last), _is_point))
    torn = [Torn(path, removed) for path, is_good in files if path.exists() and (removed := _cut(path, is_good))]
    if torn:
        sync_directory(run)
    return torn


def _cut(path: Path, is_good: Callable[[bytes], bool]) -> int:
    """Truncate a file after its last good line; return the number of removed bytes."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        end = _end_of_good(descriptor, size, is_good)
        if end is None:
            raise UserError(f"{path}: no whole line in its last {min(size, _MOST_TORN_BYTES)} B: it was damaged by "
                            "something other than a crash, expected a file as a controller wrote it")  # fmt: skip
        if end < size:
            os.ftruncate(descriptor, end)
            os.fsync(descriptor)
        return size - end
    finally:
        os.close(descriptor)


def _end_of_good(descriptor: int, size: int, is_good: Callable[[bytes], bool]) -> int | None:
    """Return the end of the last good line; without one 0 for a file up to `_MOST_TORN_BYTES`, else None."""
    read_from, tail = size, b""
    while read_from > max(0, size - _MOST_TORN_BYTES):
        begin = max(0, read_from - max(_BLOCK_BYTES, len(tail)))  # the block size doubles, because lines may be long
        tail = os.pread(descriptor, read_from - begin, begin) + tail
        read_from = begin
        end = len(tail)
        while (line_break := tail.rfind(b"\n", 0, end)) >= 0:
            before = tail.rfind(b"\n", 0, line_break)
            if before < 0 and read_from > 0:
                break  # the beginning of this line is not read yet
            if is_good(tail[before + 1 : line_break + 1]):
                return read_from + line_break + 1
            end = line_break
    return None if read_from > 0 or size > _MOST_TORN_BYTES else 0


def _is_point(line: bytes) -> bool:
    try:
        parse_line(line[:-1].decode())
    except (LineError, UnicodeError):
        return False
    return True
