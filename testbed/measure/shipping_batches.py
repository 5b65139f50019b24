"""Splits the points of a run directory, which are segments of lines, into batches of whole lines."""

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
    """A batch of `points` lines that ends at byte `end_bytes` of segment `segment`, counted from 1."""

    lines: bytes
    points: int
    segment: int
    end_bytes: int


class SegmentReader:
    """Reads whole lines at positions in segments; for one thread.

    The segment stays open, because a seek in a compressed segment decompresses all data before the position; a read
    that continues at the end of the last one needs no seek.
    """

    def __init__(self) -> None:
        self._file: BufferedReader | None = None
        self._at: tuple[Path, int] | None = None  # end position of the last read
        self._ahead = b""  # bytes that were read beyond this position

    def close(self) -> None:
        """Close the segment."""
        if self._file is not None:
            self._file.close()
        self._file, self._at, self._ahead = None, None, b""

    def whole_lines(self, path: Path, offset_bytes: int, most_lines: int, most_bytes: int) -> bytes:
        """Return whole lines after a position: at least one line of any length, if there is one."""
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
    """Return the next whole lines after a position, or None if there are none now.

    A batch has at least one line, of any length. A last line without its line break is incomplete: it is being written,
    or, if another segment follows, was never completed. `reader` makes successive batches efficient.
    """
    source, parts = reader or SegmentReader(), point_parts(run)
    try:
        while True:
            is_last = not parts.is_full(segment)  # before the read: a full segment does not grow any more
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
    """Return the present number of bytes after a position."""
    sizes = [size_bytes(path) for path in segments(run)][segment - 1 :]
    return max(0, sum(sizes) - offset_bytes)


def points_left(run: Path, segment: int, offset_bytes: int) -> int:
    """Return the present number of whole lines after a position."""
    count = 0
    for number, path in enumerate(segments(run)[segment - 1 :], segment):
        with open_part(path) as file:
            file.seek(offset_bytes if number == segment else 0)
            while block := file.read(1 << 20):
                count += block.count(b"\n")
    return count


def halves(lines: bytes) -> Sequence[bytes] | None:
    """Split whole lines near their middle; return None for a single line."""
    cut = lines.find(b"\n", len(lines) // 2) + 1
    if cut in {0, len(lines)}:
        cut = lines.rfind(b"\n", 0, len(lines) // 2) + 1
    return (lines[:cut], lines[cut:]) if 0 < cut < len(lines) else None
