"""The output of `testbed ingest`: progress on standard error, and a table of counts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from testbed.measure.influx_address import Address
from testbed.measure.shipping import ShippingCount
from testbed.measure.shipping_batches import bytes_left
from testbed.measure.shipping_position import Shipped
from testbed.study.report.terminal.console import LastingConsole, wide_console

_LINE_EVERY_S = 5.0


class ShippingProgress:
    """Progress by bytes: on a terminal a bar with rate and time left, elsewhere a line every few seconds."""

    def __init__(self, run: Path, address: Address, console: Console | None = None) -> None:
        self._run = run
        self._console = console or LastingConsole(stderr=True)
        self._title = f"{run} to {address}"
        self._began_s = self._told_s = time.monotonic()
        self._first: tuple[int, int] | None = None  # points read and bytes left, at the first call
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        """Show the bar."""
        self._console.print(self._title, markup=False, highlight=False, soft_wrap=True)
        if self._console.is_terminal:
            columns = (
                BarColumn(), TextColumn("{task.percentage:3.0f} %"), TextColumn("{task.fields[rate]}"),
                TextColumn("left:"), TimeRemainingColumn(),
            )  # fmt: skip
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("", total=None, rate="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """Print one permanent line."""
        self._console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)

    def show(self, reached: Shipped) -> None:
        """Show the present progress."""
        now_s = time.monotonic()
        if self._bar is None and now_s - self._told_s < _LINE_EVERY_S:
            self._first = self._first or (reached.read_points, bytes_left(self._run, *_at(reached)))
            return
        left_bytes = bytes_left(self._run, *_at(reached))
        self._first = self._first or (reached.read_points, left_bytes)
        points, done_bytes = reached.read_points - self._first[0], self._first[1] - left_bytes
        elapsed_s = max(now_s - self._began_s, 1e-3)
        rate = f"{reached.read_points} points, {points / elapsed_s:,.0f} per second"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=max(self._first[1], done_bytes), completed=done_bytes, rate=rate)
            return
        self._told_s = now_s
        left_s = left_bytes / (done_bytes / elapsed_s) if done_bytes > 0 else None
        self._console.print(rate + (f", {left_s:.0f} s left" if left_s is not None else ""), highlight=False)


def _at(reached: Shipped) -> tuple[int, int]:
    return reached.segment, reached.offset_bytes


def print_counts(counts: Sequence[ShippingCount], *, as_json: bool) -> None:
    """Print the counts of each run on standard output."""
    if as_json:
        sys.stdout.write(json.dumps([count.as_json() for count in counts], indent=2) + "\n")
        return
    if not counts:
        return
    console = wide_console()
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("run")
    for title in ("points", "shipped", "refused", "left", "sent now", "s"):
        table.add_column(title, justify="right")
    for count in counts:
        numbers = (count.points, count.shipped, count.refused, count.left, count.sent)
        table.add_row(escape(Path(count.run).name), *(f"{number:,}" for number in numbers), f"{count.elapsed_s:.1f}")
    console.print(table)
    for count in counts:
        if count.refused_file:
            text = f"{count.run}: {count.refused} points refused; they are in {count.refused_file}, with the reasons"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        if count.problem:
            text = f"{count.run}: {count.left} points not shipped: {count.problem}; the same command ships the rest"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
