"""Follows a growing file of lines in parts, while parts are rotated and compressed."""

from __future__ import annotations

import os
from io import BufferedReader

from testbed.run.parts import Parts

MAX_READ_BYTES = 1 << 20


class Tail:
    """Reads the complete lines of a file in parts, each once; the file need not exist yet.

    The first line read is the first of the file, or with `back_bytes` a line of the newest part, at most this number of
    bytes before its end. A file that was replaced or truncated is read again from its first part.
    """

    def __init__(self, parts: Parts, back_bytes: int | None = None) -> None:
        self.grew_unix_s = 0.0  # last write to the part that is read, Unix time; 0 if there is none
        self._parts = parts
        self._number = 1
        self._file: BufferedReader | None = None
        self._read_bytes = 0  # of this part
        self._rest = b""  # the read bytes after the last complete line
        self._inside_line = False
        if back_bytes is not None:
            self._begin_near_end(back_bytes)

    def __del__(self) -> None:
        """Close the open part."""
        if self._file is not None:
            self._file.close()

    def read(self, max_bytes: int = MAX_READ_BYTES) -> tuple[list[bytes], bool]:
        """Return the next complete lines without line breaks, and whether reading restarted before them.

        About `max_bytes` are read, but always a complete line, and never more than the rest of one part. A part that
        does not exist yet has no lines. Raises `OSError`, `EOFError` or `zlib.error` for a part that cannot be read.
        """
        again = self._begins_again()
        if again:
            self._go_to(1)
        while True:
            is_full = self._parts.is_full(self._number)  # before the read: a full part without more lines is at its end
            lines = self._next_lines(max_bytes)
            if lines or not is_full:
                return lines, again
            self._go_to(self._number + 1)

    def _next_lines(self, max_bytes: int) -> list[bytes]:
        if self._file is None:
            try:
                self._file = self._parts.open(self._number)
            except FileNotFoundError:
                return []
        self.grew_unix_s = os.fstat(self._file.fileno()).st_mtime
        while more := self._file.read(max_bytes):
            self._read_bytes += len(more)
            block = self._rest + more
            whole, line_break, self._rest = block.rpartition(b"\n")
            if not line_break:
                continue
            lines = whole.split(b"\n")
            if self._inside_line:
                self._inside_line = False
                lines = lines[1:]
            if lines:
                return lines
        return []

    def _begins_again(self) -> bool:
        """Whether the open part was replaced by another file or truncated; a full part cannot be."""
        if self._file is None or self._parts.is_full(self._number):
            return False
        mine = os.fstat(self._file.fileno())
        try:
            there = self._parts.growing(self._number).stat()
        except FileNotFoundError:
            return False
        if mine.st_size < self._read_bytes:
            return True
        is_other = (mine.st_dev, mine.st_ino) != (there.st_dev, there.st_ino)
        return is_other and not self._parts.is_full(self._number)  # again: a rotation may have renamed it meanwhile

    def _begin_near_end(self, back_bytes: int) -> None:
        self._number = max(1, max(self._parts.numbers(), default=0) + self._parts.renames)
        try:
            self._file = self._parts.open(self._number)
        except FileNotFoundError:
            return
        self._read_bytes = max(0, os.fstat(self._file.fileno()).st_size - back_bytes)
        self._inside_line = self._read_bytes > 0
        self._file.seek(self._read_bytes)

    def _go_to(self, number: int) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._number = None, number
        self._read_bytes, self._rest, self._inside_line = 0, b"", False
