"""Cuts the points of a run directory, in segments of whole lines, into batches of whole lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import UserError
from testbed.measure.spool import segment_path, segments


@dataclass(frozen=True, slots=True)
class Batch:
    """`lines`, `points` of them, end at byte `end_bytes` of segment `segment`, counted from 1."""

    lines: bytes
    points: int
    segment: int
    end_bytes: int


def next_batch(run: Path, segment: int, offset_bytes: int, most_lines: int, most_bytes: int) -> Batch | None:
    """Return the next whole lines behind a position, or None where no more is there now.

    At least one line, however long. A last line without its line break is not whole: it is being written, or, in a
    segment that is followed by another, was never written to its end.
    """
    while True:
        is_last = not segment_path(run, segment + 1).exists()  # asked first: then the other does not grow any more
        lines = _whole_lines(segment_path(run, segment), offset_bytes, most_lines, most_bytes)
        if lines:
            return Batch(lines, lines.count(b"\n"), segment, offset_bytes + len(lines))
        if is_last:
            return None
        segment, offset_bytes = segment + 1, 0


def _whole_lines(path: Path, offset_bytes: int, most_lines: int, most_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset_bytes)
            data = file.read(most_bytes)
            if data and b"\n" not in data:
                data += file.readline()
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}; expected points of a run") from error
    data = data[: data.rfind(b"\n") + 1]
    rest = data.split(b"\n", most_lines)[most_lines:]
    return data[: len(data) - len(rest[0])] if rest else data


def bytes_left(run: Path, segment: int, offset_bytes: int) -> int:
    """Return how many bytes are behind a position now."""
    sizes = [path.stat().st_size for path in segments(run)][segment - 1 :]
    return max(0, sum(sizes) - offset_bytes)


def points_left(run: Path, segment: int, offset_bytes: int) -> int:
    """Return how many whole lines are behind a position now."""
    count = 0
    for number, path in enumerate(segments(run)[segment - 1 :], segment):
        with path.open("rb") as file:
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
