"""The agent's log on standard error, bounded where that is a file: whoever makes it write much fills no disk.

What a service manager takes from standard error is bounded by that.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import sys
from pathlib import Path

MOST_BYTES = 16 << 20
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class BoundedLog(logging.StreamHandler):  # type: ignore[type-arg]  # of text
    """A handler for standard error that keeps a file of at most `most_bytes`, and the one before it as `NAME.1`.

    `turns` counts how often a file was full. What other processes write to the same file is part of it.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        super().__init__(sys.stderr)
        self.most_bytes = most_bytes
        self.turns = 0
        self._number = sys.stderr.fileno()
        self._is_file = stat.S_ISREG(os.fstat(self._number).st_mode)
        if self._is_file:  # else whatever is written after the file was emptied would leave a hole before it
            flags = fcntl.fcntl(self._number, fcntl.F_GETFL)
            fcntl.fcntl(self._number, fcntl.F_SETFL, flags | os.O_APPEND)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, and make room if the file is full by now."""
        super().emit(record)
        try:
            if self._is_file and os.fstat(self._number).st_size > self.most_bytes:
                self._turn()
        except OSError:  # a log that cannot be kept must not end the agent
            self.handleError(record)

    def _turn(self) -> None:
        path = Path(f"/proc/self/fd/{self._number}").readlink()
        if path.exists():  # not one that somebody has deleted
            part = path.with_name(path.name + ".1.part")
            shutil.copyfile(path, part)
            part.replace(path.with_name(path.name + ".1"))
        os.ftruncate(self._number, 0)
        self.turns += 1
        self.stream.write(f"the log reached {self.most_bytes >> 20} MiB; what was before is in {path.name}.1\n")
        self.flush()


def log_to_stderr(level: int) -> None:
    """Log to standard error, bounded; called once, when the agent's process begins."""
    handler = BoundedLog()
    handler.setFormatter(logging.Formatter(_FORMAT))
    logging.basicConfig(level=level, handlers=[handler])


def turns() -> int:
    """Return how often this process has filled its log."""
    return sum(each.turns for each in logging.getLogger().handlers if isinstance(each, BoundedLog))
