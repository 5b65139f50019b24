"""An append-only file of whole lines, which never ends in a partial line."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


class AppendFile:
    """Appends by write(2): written lines survive a crash of the process, and after `sync` also a loss of power.

    The file is new, or with `continues` an existing one that ends in a whole line. Raises the `OSError` of `os.open`
    and `os.write`. All methods but `sync` are for one thread.
    """

    def __init__(self, path: Path, *, continues: bool = False) -> None:
        self.path = path
        way = os.O_EXCL if not continues else 0
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | way | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self.size_bytes = os.fstat(self._fd).st_size
        self._unsynced = continues  # lines of a killed process may not be durable

    @property
    def closed(self) -> bool:
        """Whether the file was closed."""
        return self._fd < 0

    def write(self, lines: bytes | bytearray) -> None:
        """Append whole lines; if the disk is full, the lines that fit are kept, and `OSError` is raised."""
        done = 0
        try:
            while done < len(lines):
                done += os.write(self._fd, memoryview(lines)[done:])
        except OSError:
            whole = lines.rfind(b"\n", 0, done) + 1
            if whole < done:
                with contextlib.suppress(OSError):  # otherwise readers ignore the partial line
                    os.ftruncate(self._fd, self.size_bytes + whole)
            self.size_bytes += whole
            self._unsynced = True
            raise
        self.size_bytes += done
        self._unsynced = True

    def sync(self) -> None:
        """Make all lines durable that were written before this call."""
        if self._unsynced:
            self._unsynced = False
            os.fdatasync(self._fd)  # content and length; the time of the last change may be lost

    def move(self, path: Path) -> None:
        """Rename the file; an existing file of that name is replaced."""
        self.path.rename(path)
        self.path = path

    def close(self) -> None:
        """Close the file without making it durable; a second call does nothing."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def sync_directory(path: Path) -> None:
    """Make the names of new, renamed and deleted files of a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
