"""The bounded log of a guest. Imports the standard library alone, as the keeper loads it."""

from __future__ import annotations

import contextlib
from pathlib import Path

LOG_BYTES = 1 << 20
_LAST_BYTES = 4096


class Log:
    """Output of a guest's processes: the first MiB in a file, the `last` bytes in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._left = LOG_BYTES
        self.last = b""

    def write(self, data: bytes) -> None:
        """Take some output."""
        self.last = (self.last + data)[-_LAST_BYTES:]
        if self._left > 0:
            with contextlib.suppress(OSError), self._path.open("ab") as file:  # a full disk is no reason to stop
                file.write(data[: self._left])
            self._left -= len(data)

    def remember(self, tail: str) -> None:
        """Take the last output of a process whose output the keeper has written to the file."""
        self.last = tail.encode("latin-1")

    def tail(self, lines: int = 5) -> str:
        """Return the last lines on one line."""
        found = [line.strip() for line in self.last.decode(errors="replace").splitlines() if line.strip()]
        return " | ".join(found[-lines:])
