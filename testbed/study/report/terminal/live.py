"""The live display of a run: a picture that redraws itself on a terminal, plain lines otherwise."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live

from testbed.control.snapshot import Snapshot
from testbed.study.report.terminal.picture import clock, draw, status

EVENTS_KEPT = 100


class PlainDisplay:
    """The display as plain lines: one line per event, with the trace clock."""

    def __init__(self, console: Console, every_s: float = 10.0) -> None:
        self._console = console
        self._every_s = every_s
        self._last_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        pass

    def line(self, trace_s: float, text: str) -> None:
        """Print one event."""
        self._console.print(f"[{clock(trace_s)}] {text}", markup=False, highlight=False, soft_wrap=True)

    def show(self, snapshot: Snapshot) -> None:
        """Print the status of the run, at most once per `every_s` wall seconds."""
        if snapshot.wall_s - self._last_s >= self._every_s:
            self._last_s = snapshot.wall_s
            self.line(snapshot.trace_s, status(snapshot))


class LiveDisplay:
    """The display as a picture that redraws itself in place, in the present size of the terminal."""

    def __init__(self, console: Console, title: str) -> None:
        self._title = title
        self._lines: deque[str] = deque(maxlen=EVENTS_KEPT)
        self._picture: Snapshot | None = None
        self._live = Live(self, console=console, refresh_per_second=4, transient=True, vertical_overflow="crop")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # one row less than the terminal has, because a full terminal would scroll
        yield draw(self._title, self._picture, tuple(self._lines), options.max_width, console.size.height - 1)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def line(self, trace_s: float, text: str) -> None:
        """Add one event to the list of the last events."""
        self._lines.append(f"[{clock(trace_s)}] {text}")

    def show(self, snapshot: Snapshot) -> None:
        """Set the picture that the next redraw shows."""
        self._picture = snapshot


def display_for(console: Console, title: str) -> LiveDisplay | PlainDisplay:
    """Return the live display on a terminal, plain lines otherwise."""
    return LiveDisplay(console, title) if console.is_terminal else PlainDisplay(console)
