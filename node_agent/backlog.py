"""Queue of lines that wait for the bus: in files of the agent's work folder, bounded, first in, first out."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

LIMIT_BYTES = 64 << 20
_SEGMENTS = 16  # number of files at the limit; the oldest file is deleted as a whole
_PATTERN = "telemetry-*.backlog"

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Segment:
    path: Path
    number: int
    bytes: int = 0
    lines: int = 0  # added by this agent


class Backlog:
    """A queue of lines. Beyond `limit_bytes` in files the oldest lines are deleted, and counted in `dropped`.

    A file is removed once all of its lines have been taken. So the next agent in the same folder finds the lines that
    a killed agent left, some of them perhaps for the second time. A power cut may lose the last lines, but it also ends
    the guests that they describe, so no fsync is done. Lines are added directly because the write goes to memory; files
    are read in a thread.
    """

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.dropped = 0
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._segments: deque[_Segment] = deque()  # the first is being read, the last is being written
        self._tail: IO[bytes] | None = None
        self._read: deque[bytes] = deque()  # lines of the first segment
        self._fails = False

    def open(self) -> None:
        """Find the files of an earlier agent."""
        found = [_Segment(path, int(path.stem.partition("-")[2])) for path in self._folder.glob(_PATTERN)]
        for segment in sorted(found, key=lambda one: one.number):
            segment.bytes = segment.path.stat().st_size
            self._segments.append(segment)

    def close(self) -> None:
        """Close the files, and leave them to the next agent."""
        self._end_tail()

    def __bool__(self) -> bool:
        return bool(self._segments)

    def append(self, line: bytes) -> None:
        """Add a line, which has no line break; a line that cannot be written counts as dropped."""
        try:
            self._write(line + b"\n")
        except OSError as error:
            self._end_tail()  # a partly written line is ignored
            self.dropped += 1
            if not self._fails:
                _log.error("%s: telemetry that waits for the bus is lost: %s", self._folder, error.strerror)
            self._fails = True
            return
        self._fails = False
        while len(self._segments) > 2 and sum(segment.bytes for segment in self._segments) > self._limit_bytes:
            self._drop_oldest()

    async def first(self, most: int) -> list[bytes]:
        """Return up to `most` of the oldest lines, the same until they are taken; none if nothing waits."""
        while not self._read and self._segments:
            segment = self._segments[0]
            if len(self._segments) == 1:
                self._end_tail()
            lines = await asyncio.to_thread(_lines_of, segment.path)
            if self._segments and self._segments[0] is segment:  # else it was deleted meanwhile
                self._read.extend(lines)
                if not lines:
                    self._remove_first()
        return list(islice(self._read, most))

    def take(self, lines: Sequence[bytes]) -> None:
        """Remove the oldest lines, as returned by `first`: the broker has acknowledged them."""
        if self._read and self._read[0] is lines[0]:  # else they were deleted meanwhile
            for _ in lines:
                self._read.popleft()
            if not self._read:
                self._remove_first()

    def _write(self, data: bytes) -> None:
        if self._tail is None:
            number = self._segments[-1].number + 1 if self._segments else 1
            path = self._folder / f"telemetry-{number:09d}.backlog"
            self._tail = path.open("wb", buffering=0)
            self._segments.append(_Segment(path, number))
        segment = self._segments[-1]
        self._tail.write(data)
        segment.bytes += len(data)
        segment.lines += 1
        if segment.bytes >= self._limit_bytes // _SEGMENTS:
            self._end_tail()

    def _end_tail(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _remove_first(self) -> None:
        self._segments.popleft().path.unlink(missing_ok=True)

    def _drop_oldest(self) -> None:
        lost = len(self._read) or self._segments[0].lines
        self._read.clear()
        self._remove_first()
        self.dropped += lost
        _log.error(
            "%s: more than %d MiB of telemetry wait for the bus: the %d oldest samples are lost, %d by now",
            self._folder, self._limit_bytes >> 20, lost, self.dropped,
        )  # fmt: skip


def _lines_of(path: Path) -> list[bytes]:
    """Return the whole lines of a file; a cut line at its end is from an agent that was killed during a write."""
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        _log.error("%s: telemetry that waited for the bus is lost: %s", path, error.strerror)
        return []
