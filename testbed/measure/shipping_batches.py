"""Cuts the points of a run directory, in segments of whole lines, into batches of whole lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from testbed.errors import UserError
from testbed.measure.spool import segments
from testbed.run.parts import READ_ERRORS, open_part, point_parts, reason, size_bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """`lines`, `points` of them, end at byte `end_bytes` of segment `segment`, counted from 1."""

    lines: bytes
    points: int
    segment: int
    end_bytes: int


class SegmentReader:
    """Reads whole lines at positions in segments; not to be used by two threads.

    The segment stays open: a position in a compressed one is found by decompressing all before it, unless it is where
    the last reading ended.
    """

    def __init__(self) -> None:
        self._file: BufferedReader | None = None
        self._at: tuple[Path, int] | None = None  # where the last reading ended
        self._ahead = b""  # bytes that were read behind that

    def close(self) -> None:
        """Close the segment."""
        if self._file is not None:
            self._file.close()
        self._file, self._at, self._ahead = None, None, b""

    def whole_lines(self, path: Path, offset_bytes: int, most_lines: int, most_bytes: int) -> bytes:
        """Return whole lines behind a position; at least one line, however long, if there is one."""
        try:
            if self._file is None or self._at != (path, offset_bytes):
                self.close()
                self._file = open_part(path)
                self._file.seek(offset_bytes)
            data = self._ahead + self._file.read(max(0, most_bytes - len(self._ahead)))
            if data and b"\n" not in data:
                data += self._file.readline()
        except READ_ERRORS as error:
            self.close()
            raise UserError(f"{path}: cannot read: {reason(error)}; expected points of a run") from error
        lines = data[: data.rfind(b"\n", 0, most_bytes) + 1] or data[: data.find(b"\n") + 1]
        rest = lines.split(b"\n", most_lines)[most_lines:]
        lines = lines[: len(lines) - len(rest[0])] if rest else lines
        self._at, self._ahead = (path, offset_bytes + len(lines)), data[len(lines) :]
        return lines


def next_batch(
    run: Path, segment: int, offset_bytes: int, most_lines: int, most_bytes: int, reader: SegmentReader | None = None
) -> Batch | None:
    """Return the next whole lines behind a position, or None where no more is there now.

    At least one line, however long. A last line without its line break is not whole: it is being written, or, in a
    segment that is followed by another, was never written to its end. `reader` serves batches that follow each other.
    """
    source, parts = reader or SegmentReader(), point_parts(run)
    try:
        while True:
            is_last = not parts.is_full(segment)  # asked first: then it does not grow any more
            lines = source.whole_lines(parts.full(segment), offset_bytes, most_lines, most_bytes)
            if lines:
                return Batch(lines, lines.count(b"\n"), segment, offset_bytes + len(lines))
            if is_last:
                return None
            segment, offset_bytes = segment + 1, 0
    finally:
        if reader is None:
            source.close()


def bytes_left(run: Path, segment: int, offset_bytes: int) -> int:
    """Return how many bytes are behind a position now."""
    sizes = [size_bytes(path) for path in segments(run)][segment - 1 :]
    return max(0, sum(sizes) - offset_bytes)


def points_left(run: Path, segment: int, offset_bytes: int) -> int:
    """Return how many whole lines are behind a position now."""
    count = 0
    for number, path in enumerate(segments(run)[segment - 1 :], segment):
        with open_part(path) as file:
            file.seek(offset_bytes if number == segment else 0)
            while block := file.read(1 << 20):
                count += block.count(b"\n")
    return count


def halves(lines: bytes) -> Sequence[bytes] | None:
    """Cut whole lines in two near their middle, or return None for a single line."""
    cut = lines.find(b"\n", len(lines) // 2) + 1
    if cut in {0, len(lines)}:
        cut = lines.rfind(b"\n", 0, len(lines) // 2) + 1
    return (lines[:cut], lines[cut:]) if 0 < cut < len(lines) else None
