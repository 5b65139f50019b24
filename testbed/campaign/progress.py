"""How far a campaign is: a bar with the time left on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from testbed.campaign.work import UnitResult

_LINE_EVERY_S = 15.0


def duration(seconds: float) -> str:
    """Return seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class CampaignProgress:
    """Told of every unit that ends; the time left is by work done since the start."""

    def __init__(self, simulations: int, console: Console) -> None:
        self.simulations = simulations
        self.done = 0
        self.failed = 0
        self._console = console
        self._began_s = time.monotonic()
        self._told_s = self._began_s
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        """Show the bar."""
        if self._console.is_terminal:
            columns = (
                TextColumn("simulations"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"),
            )  # fmt: skip
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("", total=self.simulations, left="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def ended(self, result: UnitResult) -> None:
        """Count a unit, and show where that leaves the campaign."""
        self.done += len(result.measures) + len(result.bounds)
        self.failed += len(result.faults)
        for fault in result.faults:
            self._console.print(
                f"failed: {result.label}, {fault.what}: {fault.error}", markup=False, highlight=False, soft_wrap=True
            )
        now_s = time.monotonic()
        settled = self.done + self.failed
        left_s = (now_s - self._began_s) / max(settled, 1) * max(self.simulations - settled, 0)
        text = f"{duration(left_s)} left" + (f", {self.failed} failed" if self.failed else "")
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=settled, left=text)
        elif now_s - self._told_s >= _LINE_EVERY_S:
            self._told_s = now_s
            self._console.print(
                f"{settled}/{self.simulations} simulations, {text}", markup=False, highlight=False, soft_wrap=True
            )
