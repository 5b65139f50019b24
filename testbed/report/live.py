"""The live display: a picture that redraws itself on a terminal, plain lines anywhere else."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from testbed.control.snapshot import NodePicture, Snapshot

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red", "bright_cyan", "bright_magenta")
_BAR = 30


def _clock(seconds: float) -> str:
    whole = int(seconds)
    days, rest = divmod(whole, 86400)
    return (f"{days} d " if days else "") + f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"


class PlainDisplay:
    """One line an event, with the trace clock."""

    def __init__(self, console: Console, every_s: float = 10.0) -> None:
        self._console = console
        self._every_s = every_s
        self._last_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def line(self, trace_s: float, text: str) -> None:
        """Print one event."""
        self._console.print(f"[{_clock(trace_s)}] {text}", markup=False, highlight=False, soft_wrap=True)

    def show(self, snapshot: Snapshot) -> None:
        """Print where the run is, every ten seconds."""
        if snapshot.wall_s - self._last_s >= self._every_s:
            self._last_s = snapshot.wall_s
            self.line(snapshot.trace_s, _status(snapshot).plain)


def _status(picture: Snapshot) -> Text:
    eta = "?" if picture.eta_s is None else _clock(picture.eta_s)
    return Text(
        f"{picture.work_frac:4.0%} of the work, {_clock(picture.wall_s)} gone, ETA {eta}; "
        f"jobs: {picture.coming} to come, "
        f"{picture.waiting} waiting, {picture.running} running, {picture.paused} paused, {picture.done} done, "
        f"{picture.failed} failed; {picture.in_flight} operations under way, {picture.pending} planned"
    )


def _bar(node: NodePicture, width: int) -> Text:
    bar = Text()
    used = 0
    for guest in node.guests:
        cells = min(round(guest.cap_cores / node.cpus * width), width - used) if node.cpus else 0
        colour = _COLOURS[guest.job % len(_COLOURS)]
        label = f"{guest.job}"[:cells].ljust(cells)
        bar.append(label, style=f"black on {colour}" if guest.phase == "running" else f"{colour} reverse dim")
        used += cells
    bar.append("·" * (width - used), style="dim")
    return bar


class LiveDisplay:
    """Redraws itself in place; resizes with the terminal."""

    def __init__(self, console: Console, title: str) -> None:
        self._title = title
        self._lines: deque[str] = deque(maxlen=10)
        self._picture: Snapshot | None = None
        self._live = Live(self._render(), console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def line(self, trace_s: float, text: str) -> None:
        """Take one event into the list of the last ones."""
        self._lines.append(f"[{_clock(trace_s)}] {text}")
        self._live.update(self._render())

    def show(self, snapshot: Snapshot) -> None:
        """Redraw."""
        self._picture = snapshot
        self._live.update(self._render())

    def _render(self) -> Group:
        last = Panel(
            Text("\n".join(self._lines), no_wrap=True, overflow="ellipsis"),
            title="last events",
            title_align="left",
        )
        picture = self._picture
        if picture is None:
            return Group(Text(self._title, style="bold"), last)
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(self._title, style="bold"),
            Text(f"trace {_clock(picture.trace_s)}"),
            ProgressBar(total=1.0, completed=picture.work_frac, width=_BAR),
            Text(f"{picture.work_frac:.0%}  ETA {'?' if picture.eta_s is None else _clock(picture.eta_s)}"),
        )
        queue = Text(
            f"jobs: {picture.coming} to come  {picture.waiting} waiting  {picture.running} running  "
            f"{picture.paused} paused  {picture.done} done  {picture.failed} failed      "
            f"operations: {picture.in_flight} under way, {picture.pending} planned      "
            f"penalties: {picture.reschedulings}, {picture.penalty_s:.1f} s in all"
        )
        nodes = Table.grid(padding=(0, 2))
        for node in picture.nodes:
            guests = "  ".join(
                f"{guest.job}.{guest.task} {guest.cap_cores:.2f}/{guest.used_cores:.2f}"
                + ("" if guest.phase == "running" else f" {guest.phase}")
                for guest in node.guests
            )
            nodes.add_row(
                Text(node.name, style="bold" if node.online else "bold red"),
                _bar(node, _BAR),
                Text(f"{node.memory_held_mib:>5}/{node.memory_mib} MiB"),
                Text(guests or ("idle" if node.online else "lost"), overflow="ellipsis", no_wrap=True),
            )
        caption = Text("job.task  cores allowed/used", style="dim")
        return Group(
            head,
            queue,
            Panel(nodes, title="nodes", title_align="left", subtitle=caption, subtitle_align="left"),
            last,
        )


def display_for(console: Console, title: str) -> LiveDisplay | PlainDisplay:
    """Return the live display on a terminal, plain lines otherwise."""
    return LiveDisplay(console, title) if console.is_terminal else PlainDisplay(console)
