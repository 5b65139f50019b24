"""Files of lines in parts: the journal and the points of a run, in order while parts fill up and are compressed.

Such a file has one part that grows. The others are full: their lines never change, however they are stored.

* The journal grows in `events.jsonl`; its full parts are renamed to `events.0001.jsonl`, `events.0002.jsonl`, …
* Points grow in the last of `points.lp`, `points.2.lp`, `points.3.lp`, …

A full part is later replaced by a compressed one with `.gz` behind its name. The compressed file appears atomically,
and the original is deleted afterwards. In between, or after a crash, both exist with the same lines. Between the two
renames of a rotation, the growing part of the journal does not exist, and counts as empty.

A reader has to check whether a part is full before it reads the part to its end. With the reverse order, the writer may
append a line and begin the next part between the last read and the check.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from gzip import GzipFile
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import cast

from testbed.errors import UserError

READ_ERRORS = (OSError, EOFError, zlib.error)  # of a part, compressed or not
_BLOCK_BYTES = 1 << 18


def packed(part: Path) -> Path:
    """Return the compressed file of a full part."""
    return part.with_name(f"{part.name}.gz")


def exists(part: Path) -> bool:
    """Whether a part exists, compressed or not."""
    return part.exists() or packed(part).exists()  # in this order: the original is deleted after its compression


def open_part(part: Path) -> BufferedReader:
    """Open a part, compressed or not, by its name without `.gz`; raises `FileNotFoundError` or another `OSError`."""
    try:
        return part.open("rb")
    except FileNotFoundError as error:
        try:
            return BufferedReader(cast("RawIOBase", GzipFile(packed(part))), _BLOCK_BYTES)
        except FileNotFoundError:
            raise error from None


def size_bytes(part: Path) -> int:
    """Return the bytes of the lines of a part, compressed or not; raises `OSError`."""
    try:
        return part.stat().st_size
    except FileNotFoundError:
        with packed(part).open("rb") as file:
            file.seek(-4, os.SEEK_END)  # the last field of a gzip file is the size of its content
            return int.from_bytes(file.read(), "little")


def reason(error: BaseException) -> str:
    """Return the reason of a read error, as a text for people."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one file of lines, numbered from 1.

    The first lines are written to `path`. With `renames` a rotation renames the full part, and further lines go to
    `path` again; otherwise each part is written to a file of its own name.
    """

    path: Path
    renames: bool

    def full(self, number: int) -> Path:
        """Return the name that a part has when it is full."""
        if not self.renames and number == 1:
            return self.path
        digits = f"{number:04}" if self.renames else str(number)
        return self.path.with_name(f"{self.path.stem}.{digits}{self.path.suffix}")

    def growing(self, number: int) -> Path:
        """Return the name that a part has while it grows."""
        return self.path if self.renames else self.full(number)

    def is_full(self, number: int) -> bool:
        """Whether a part exists and never grows again."""
        if self.renames:
            return exists(self.full(number))
        return packed(self.full(number)).exists() or exists(self.full(number + 1))

    def numbers(self) -> list[int]:
        """Return the numbers of the parts that have files of their own names, in order."""
        name = re.compile(re.escape(self.path.stem) + r"(?:\.(\d+))?" + re.escape(self.path.suffix) + r"(?:\.gz)?")
        found: set[int] = set()
        for path in self.path.parent.glob("*"):
            match = name.fullmatch(path.name)
            number = int(match[1] or 1) if match else 0
            if number and path in (self.full(number), packed(self.full(number))):
                found.add(number)
        return sorted(found)

    def open(self, number: int) -> BufferedReader:
        """Open a part under its present name; raises `FileNotFoundError` if it does not exist yet."""
        while True:
            try:
                return open_part(self.full(number))
            except FileNotFoundError:
                if not self.renames:
                    raise
            try:
                file = self.path.open("rb")
            except FileNotFoundError:
                if not self.is_full(number):
                    raise
                continue  # the file was renamed since the first check
            if not self.is_full(number):
                return file
            file.close()  # the file may be a later part

    def each(self) -> Iterator[BufferedReader]:
        """Open all present parts in order; each is closed when the next one is requested.

        Raises `OSError` if there is none, and `UserError` if a part is missing between others.
        """
        number = 1
        while True:
            is_last = not self.is_full(number)
            later = [each for each in self.numbers() if each > number] if is_last else []
            if later and not self.is_full(number):
                raise UserError(f"{self.full(number)}: missing: expected it before {self.full(later[0]).name}")
            try:
                file = self.open(number)
            except FileNotFoundError:
                if number == 1:
                    raise
                return
            with file:
                yield file
            if is_last:
                return
            number += 1


def journal_parts(path: Path) -> Parts:
    """Return the parts of the journal that grows at `path`, the file events.jsonl of a run directory."""
    return Parts(path, renames=True)


def point_parts(run: Path) -> Parts:
    """Return the parts of the points of a run directory."""
    return Parts(run / "points.lp", renames=False)


def has_journal(run: Path) -> bool:
    """Whether a directory has the journal of a run; it may have no entry yet."""
    parts = journal_parts(run / "events.jsonl")
    return parts.path.is_file() or parts.is_full(1)
