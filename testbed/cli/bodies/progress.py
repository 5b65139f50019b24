"""Progress display of long work: on a terminal a bar with the time left, elsewhere a line every few seconds."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

_LINE_EVERY_S = 15.0


def duration(seconds: float) -> str:
    """Return seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Progress:
    """Shows the progress of countable work; `what` names its units in plural. `line` prints above the bar."""

    def __init__(self, what: str, console: Console) -> None:
        self._what = what
        self._console = console
        self._told_s: float | None = None
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        """Show the bar."""
        if self._console.is_terminal:
            columns = (
                TextColumn(self._what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                TextColumn("{task.fields[note]}"),
            )  # fmt: skip
            self._bar = Bar(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("", total=None, note="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def line(self, text: str) -> None:
        """Print a permanent line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, done: int, total: int, left_s: float, note: str = "") -> None:
        """Show the present progress."""
        text = f"{duration(left_s)} left" + (f", {note}" if note else "")
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total, note=text)
            return
        now_s = time.monotonic()
        if self._told_s is None or now_s - self._told_s >= _LINE_EVERY_S:
            self._told_s = now_s
            self.line(f"{done}/{total} {self._what}, {text}")
