"""The text that a guest prints: the lines of the processes that the agent started in it, and its console's file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from node_agent.drivers.virt.console import tail_of
from node_agent.guests.wire import is_frame

_TAIL_LINES = 5
_TAIL_BYTES = 16_384  # frames may be among the lines
_LISTENED_CHARS = 65_536  # of all lines passed to the starter of a process


class GuestOutput:
    """The last lines of a guest; `listen` gets the first lines of its processes."""

    def __init__(self, console: Path) -> None:
        self.listen: Callable[[str], None] = lambda _line: None
        self._console = console
        self._said: list[str] = []
        self._listened_chars = 0

    def take(self, line: str) -> None:
        """Take a line of a process."""
        self._said = [*self._said[-_TAIL_LINES:], line]
        self._listened_chars += len(line)
        if self._listened_chars <= _LISTENED_CHARS:
            self.listen(line)

    def words(self, overheard: Sequence[str]) -> str:
        """Return the last lines for a message; those `overheard` replace a console whose file cannot be read."""
        console = overheard
        with contextlib.suppress(OSError):
            data = tail_of(self._console, _TAIL_BYTES)
            console = data.decode(errors="replace").replace("\r", "").strip().splitlines()
        lines = [*self._said[-_TAIL_LINES:], *[line for line in console if not is_frame(line)][-_TAIL_LINES:]]
        return f"; it printed: {' | '.join(lines)}" if lines else ""

    def remove_console(self) -> None:
        """Remove the console's file."""
        with contextlib.suppress(OSError):  # a folder that only the hypervisor may write to
            self._console.unlink()
