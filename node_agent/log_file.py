"""The agent's log on standard error, bounded where that is a file, so that no remote party can fill the disk.

A service manager bounds its own log of standard error.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import sys
from pathlib import Path

from testbed.errors import printable

MOST_BYTES = 16 << 20
MOST_LINE_CHARS = 4000
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class OneLine(logging.Formatter):
    """A formatter of single lines: text of guests, other nodes and controllers can forge no lines or control codes.

    The traceback of a fault in the agent itself stays as it is.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # a name of logging
        """Return the record's line, with its message cut to 4000 characters."""
        return printable(super().formatMessage(record), MOST_LINE_CHARS)


class BoundedLog(logging.StreamHandler):  # type: ignore[type-arg]  # of text
    """A handler for standard error that keeps a file of at most `most_bytes`, and the one before it as `NAME.1`.

    `turns` counts how often a file was full. Output of other processes to the same file counts. If `NAME.1` cannot be
    written, the older lines are lost, and the first line of the file states this. A file that cannot even be emptied
    takes no more lines.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        super().__init__(sys.stderr)
        self.most_bytes = most_bytes
        self.turns = 0
        self._full = False  # over its bound, and cannot be emptied
        self._left_out = 0  # lines since then
        self._number = sys.stderr.fileno()
        self._is_file = stat.S_ISREG(os.fstat(self._number).st_mode)
        if self._is_file:  # else writes after the file was emptied would leave a hole before them
            flags = fcntl.fcntl(self._number, fcntl.F_GETFL)
            fcntl.fcntl(self._number, fcntl.F_SETFL, flags | os.O_APPEND)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, and rotate the file if it is full; while the file cannot be emptied, only count the lines."""
        if self._full and not self._empty(""):
            self._left_out += 1
            return
        super().emit(record)
        try:
            if self._is_file and os.fstat(self._number).st_size > self.most_bytes:
                self._turn()
        except OSError:  # a log that cannot be kept must not end the agent
            self.handleError(record)

    def _turn(self) -> None:
        self.turns += 1
        reached = f"the log reached {self.most_bytes >> 20} MiB; earlier lines are"
        try:
            name = self._set_aside()
        except OSError as error:  # such as a full disk: the size limit has priority over the older lines
            self._empty(f"{reached} lost: they cannot be kept beside the log: {error.strerror or error}\n")
        else:
            self._empty(f"{reached} in {name}.1\n")

    def _set_aside(self) -> str:
        """Copy the file to `NAME.1`, and return its name; raises `OSError`, and leaves no partial copy."""
        path = Path(f"/proc/self/fd/{self._number}").readlink()
        if path.exists():  # unless the file was deleted
            part = path.with_name(path.name + ".1.part")
            try:
                shutil.copyfile(path, part)
                part.replace(path.with_name(path.name + ".1"))
            except OSError:
                with contextlib.suppress(OSError):
                    part.unlink()
                raise
        return path.name

    def _empty(self, line: str) -> bool:
        """Empty the file, and begin it with a line; return whether the file was emptied."""
        try:
            os.ftruncate(self._number, 0)
        except OSError:  # not reported: a message would make the file longer
            self._full = True
            return False
        if self._left_out:
            line += f"{self._left_out} lines were left out, as the log could not be emptied\n"
        self._full, self._left_out = False, 0
        with contextlib.suppress(OSError):
            self.stream.write(line)
            self.flush()
        return True


def log_to_stderr(level: int) -> None:
    """Log to standard error, bounded; called once, when the agent's process begins."""
    handler = BoundedLog()
    handler.setFormatter(OneLine(_FORMAT))
    logging.basicConfig(level=level, handlers=[handler])


def turns() -> int:
    """Return how often this process has filled its log."""
    return sum(each.turns for each in logging.getLogger().handlers if isinstance(each, BoundedLog))
