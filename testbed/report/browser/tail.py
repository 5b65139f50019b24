"""Files that grow, read to their last whole line, from where the last reading ended."""

from __future__ import annotations

import os
from pathlib import Path

MAX_READ_BYTES = 1 << 20


class LineTail:
    """Follows one file of lines. It may not be there yet; a file that was replaced or cut short begins again.

    `offset_bytes` is where the next reading begins: just after a line break.
    """

    def __init__(self, path: Path, offset_bytes: int = 0) -> None:
        self.path = path
        self.offset_bytes = offset_bytes
        self.grew_unix_s = 0.0
        self._identity: tuple[int, int] | None = None

    def read(self, max_bytes: int = MAX_READ_BYTES) -> tuple[list[bytes], bool]:
        """Return the next whole lines without their breaks, and whether the file began again before them.

        At most `max_bytes` are read, but always a whole line. Raises `OSError` other than a missing file.
        """
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return [], False
        identity = (status.st_dev, status.st_ino)
        again = self._identity not in {None, identity} or status.st_size < self.offset_bytes
        if again:
            self.offset_bytes = 0
        self._identity = identity
        self.grew_unix_s = status.st_mtime
        if status.st_size <= self.offset_bytes:
            return [], again
        with self.path.open("rb") as file:
            file.seek(self.offset_bytes)
            block = file.read(max_bytes)
            end = block.rfind(b"\n")
            while end < 0 and (more := file.read(max_bytes)):  # one line that is longer than a reading
                block += more
                end = block.rfind(b"\n")
        if end < 0:
            return [], again
        self.offset_bytes += end + 1
        return block[:end].split(b"\n"), again


class SegmentTail:
    """Follows the segments `points.lp`, `points.2.lp`, … of a run; begins at most `back_bytes` before their end.

    A segment never grows once the next is there, so the step to the next is taken after one more reading.
    """

    def __init__(self, run: Path, back_bytes: int = 4 << 20) -> None:
        self._run = run
        self._number = 1
        while self._segment(self._number + 1).exists():
            self._number += 1
        self._tail = LineTail(self._segment(self._number))
        self._inside_line = False
        try:
            size = self._tail.path.stat().st_size
        except FileNotFoundError:
            size = 0
        if size > back_bytes:
            self._tail.offset_bytes = size - back_bytes
            self._inside_line = True

    @property
    def grew_unix_s(self) -> float:
        """When the newest segment last grew, Unix time; 0 if there is none."""
        return self._tail.grew_unix_s

    def read(self) -> list[bytes]:
        """Return the next whole lines."""
        has_next = self._segment(self._number + 1).exists()
        lines, again = self._tail.read()
        if self._inside_line and lines:
            self._inside_line = again
            lines = lines if again else lines[1:]
        if not lines and has_next:
            self._number += 1
            self._tail = LineTail(self._segment(self._number))
            lines, _ = self._tail.read()
        return lines

    def _segment(self, number: int) -> Path:
        return self._run / ("points.lp" if number == 1 else f"points.{number}.lp")


def begin_key(run: Path) -> tuple[str, float, str]:
    """Order run directories by when they began: by the time in the name, else by when they were last written.

    Names without a time come before all that have one.
    """
    stamp = run.name[:19]
    digits = stamp.replace("-", "").replace("T", "")
    named = len(digits) == 14 and digits.isdigit()
    try:
        written_s = 0.0 if named else (run / "events.jsonl").stat().st_mtime
    except OSError:
        written_s = 0.0
    number = run.name.rsplit("-", 1)[-1]
    return stamp if named else "", written_s, number.zfill(6) if number.isdigit() else ""


def newest_run(runs: Path) -> Path | None:
    """Return the run directory under `runs` that began last, None if there is none."""
    try:
        with os.scandir(runs) as entries:
            found = [Path(entry.path) for entry in entries if entry.is_dir()]
    except OSError:
        return None
    found = [run for run in found if (run / "events.jsonl").exists()]
    return max(found, key=begin_key, default=None)
