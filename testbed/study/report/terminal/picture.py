"""The picture of a run at one moment, drawn with characters in a given size; also readable without colours."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from testbed.control.snapshot import GuestPicture, NodePicture, OperationPicture, Snapshot
from testbed.scheduling.policies.xge_slots import LENT, TAKEN

# Okabe and Ito's colours, which colour-blind readers can distinguish; black and yellow do not show on every terminal.
_COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#0072B2", "#D55E00")
_FEWEST_EVENTS = 3
_MOST_OPERATIONS = 6
_MOST_BANKS = 6
_NARROW = 90  # below this width a node has a bar of its guests, but no texts
_SLOT_STYLES = {LENT: "yellow", TAKEN: "yellow"}  # slots that are active outside their own partition
_USED, _UNUSED, _NOTHING = "█", "░", "·"


def clock(seconds: float) -> str:
    """Return seconds as 1 d 02:03:04."""
    whole = int(seconds)
    days, rest = divmod(whole, 86400)
    return (f"{days} d " if days else "") + f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"


def status(picture: Snapshot) -> str:
    """Return the status of the run in one line."""
    eta = "?" if picture.eta_s is None else clock(picture.eta_s)
    hold = f"{text}; " if (text := _standstill(picture)) else ""
    return (
        f"{hold}{picture.work_frac:4.0%} of the work, {clock(picture.wall_s)} elapsed, ETA {eta}; "
        f"jobs: {picture.coming} to come, "
        f"{picture.waiting} waiting, {picture.running} running, {picture.paused} paused, {picture.done} done, "
        f"{picture.failed} failed; {len(picture.operations)} operations in progress, {picture.pending} planned"
        f"{'; banks have: ' if picture.bank_cores else ''}{_banks(picture)}"
    )


def _banks(picture: Snapshot) -> str:
    """Return the contents of the first banks for one line of text; empty without banks."""
    shown = [f"job {job} {cores:.3f} cores" for job, cores in list(picture.bank_cores.items())[:_MOST_BANKS]]
    rest = len(picture.bank_cores) - len(shown)
    return ", ".join([*shown, *([f"and {rest} more"] if rest else [])])


def _standstill(picture: Snapshot) -> str:
    """Return the reason why trace time stands still, an empty text if it does not."""
    if picture.recovering:
        return "recovering from the loss of the controller"
    return f"{picture.hold} by the operator" if picture.hold else ""


def draw(title: str, picture: Snapshot | None, events: Sequence[str], width: int, height: int) -> RenderableType:
    """Return the picture of a run and its last events in at most `height` rows; hidden items are counted."""
    if picture is None:
        return Group(Text(title, style="bold", no_wrap=True, overflow="ellipsis"), *_events(events, height - 1))
    parts = [*_head(title, picture, width), *_jobs(picture)]
    left = height - len(parts) - 1  # rows, without the heading of the nodes
    rows = min(len(picture.nodes), max(1, left - 2 - _FEWEST_EVENTS))
    due = (
        "share" if any(guest.share_cores is not None for node in picture.nodes for guest in node.guests) else "allowed"
    )
    parts.append(_heading("nodes", f"job.task  cores used/{due}  █ used ░ {due}"))
    parts += _nodes(picture.nodes, width, rows)
    left -= rows
    operations = picture.operations[: min(_MOST_OPERATIONS, max(0, left - 2 - _FEWEST_EVENTS))]
    parts.append(_heading("operations", f"{len(picture.operations)} in progress, {picture.pending} planned"))
    if operations:
        parts.append(_grid([_operation(operation) for operation in operations]))
    return Group(*parts, *_events(events, left - 1 - len(operations)))


def _heading(name: str, note: str = "") -> RenderableType:
    text = Text.assemble((name, "bold"), ("  " + note if note else "", "dim"))
    return Rule(text, align="left", style="dim")


def _head(title: str, picture: Snapshot, width: int) -> list[RenderableType]:
    eta = "?" if picture.eta_s is None else clock(picture.eta_s)
    where = Text(f"trace {clock(picture.trace_s)}", no_wrap=True)
    rest = Text.assemble(
        f"{picture.work_frac:.0%} of the work  ", (f"ETA {eta}", "bold"),
        (f"  {clock(picture.wall_s)} elapsed", "dim"), no_wrap=True,
    )  # fmt: skip
    bar_width = min(40, width - len(where) - len(rest) - 4)
    row = Table.grid(padding=(0, 2))
    bar = [ProgressBar(total=1.0, completed=picture.work_frac, width=bar_width)] if bar_width >= 8 else []
    row.add_row(where, *bar, rest)
    hold = (f"  {text}", "bold yellow") if (text := _standstill(picture)) else ""
    return [Text.assemble((title, "bold"), hold, no_wrap=True, overflow="ellipsis"), row]


def _jobs(picture: Snapshot) -> list[RenderableType]:
    counts = Text(no_wrap=True, overflow="ellipsis")
    counts.append("jobs", style="bold")
    for count, name in (
        (picture.coming, "to come"), (picture.waiting, "waiting"), (picture.running, "running"),
        (picture.paused, "paused"), (picture.done, "done"),
    ):  # fmt: skip
        counts.append(f"  {count} {name}", style="" if count else "dim")
    if picture.failed:
        counts.append(f"  {picture.failed} failed", style="bold red")
    if picture.queue:
        counts.append("  queue ", style="bold")
        counts.append(" ".join(map(str, picture.queue)))
    costs = Text(no_wrap=True, overflow="ellipsis")
    costs.append("rescheduling penalties  ", style="bold")
    if picture.reschedulings:
        mean_s = picture.penalty_s / picture.reschedulings
        costs.append(
            f"{picture.reschedulings}, total {picture.penalty_s:.1f} s, mean {mean_s:.2f} s, "
            f"max {picture.penalty_max_s:.2f} s"
        )
    else:
        costs.append("none yet", style="dim")
    if not picture.bank_cores:
        return [counts, costs]
    banks = Text.assemble(("banks have  ", "bold"), _banks(picture), no_wrap=True, overflow="ellipsis")
    return [counts, costs, banks]


def _colour(job: int) -> str:
    return _COLOURS[job % len(_COLOURS)]


def _bar(node: NodePicture, width: int) -> Text:
    """Return the bar of a node's CPU, by job: cores that are due to the guests, and the part of them that is used."""
    bar = Text()
    # the sum of caps may exceed the node for a moment, until the caps are cut for a new guest
    whole = max(node.cpus, sum(guest.due_cores for guest in node.guests))
    allowed = 0.0
    for job, group in groupby(sorted(node.guests, key=lambda guest: (guest.job, guest.task)), lambda guest: guest.job):
        guests = list(group)
        begin = round(allowed / whole * width)
        allowed += sum(guest.due_cores for guest in guests)
        cells = min(round(allowed / whole * width), width) - begin
        used = min(cells, round(sum(guest.used_cores for guest in guests) / whole * width))
        standing = any(guest.phase != "running" for guest in guests)
        label = f"{job}"[: max(0, cells - 1)]
        fill = (_USED * used + _UNUSED * (cells - used))[len(label) :]
        bar.append(label, style=f"bold reverse {_colour(job)}")
        bar.append(fill, style=f"{_colour(job)}{' dim' if standing else ''}")
    bar.append(_NOTHING * (width - len(bar)), style="dim")
    return bar


def _guest(guest: GuestPicture) -> str:
    digits = 2 if guest.share_cores is None else 3  # shares are often less than a hundredth of a core
    what = f"{guest.job}.{guest.task} {guest.used_cores:.{digits}f}/{guest.due_cores:.{digits}f}"
    return what if guest.phase == "running" else f"{what} {guest.phase}"


def _name(node: NodePicture) -> Text:
    """Return the name of a node, with its active slot under XGE."""
    if not node.online:
        return Text(node.name, style="bold red")
    slot = (f" {node.slot}", _SLOT_STYLES.get(node.slot, "dim")) if node.slot else ""
    return Text.assemble((node.name, "bold"), slot)


def _nodes(nodes: Sequence[NodePicture], width: int, rows: int) -> list[RenderableType]:
    """Return the nodes, one per row; of more than `rows` nodes the last row has the number of the others."""
    shown = nodes if len(nodes) <= rows else nodes[: rows - 1]
    wide = width >= _NARROW
    bar_width = max(10, min(40, width // 3))
    grid = Table.grid(padding=(0, 2), expand=wide)
    named = [_name(node) for node in shown]
    grid.add_column(no_wrap=True, min_width=max((text.cell_len for text in named), default=0))
    grid.add_column(no_wrap=True, min_width=bar_width)
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(no_wrap=True, justify="right")
    if wide:
        grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for node, name in zip(shown, named, strict=True):
        if not node.online:
            grid.add_row(name, Text("lost", style="bold red"))
            continue
        used = sum(guest.used_cores for guest in node.guests)
        idle = Text("drained", style="bold yellow") if node.drained else Text("idle", style="dim")
        told = Text("  ".join(map(_guest, node.guests))) if node.guests else idle
        grid.add_row(
            name,
            _bar(node, bar_width) if node.cpus else Text(),
            f"{used:.2f}/{node.cpus:g} cores",
            f"{node.memory_held_mib}/{node.memory_mib} MiB",
            *([told] if wide else []),
        )
    rest = nodes[len(shown) :]
    if not rest:
        return [grid]
    busy = sum(node.online and bool(node.guests) for node in rest)
    lost = sum(not node.online for node in rest)
    return [grid, Text(f"and {len(rest)} more nodes: {busy} busy, {lost} lost", style="dim", no_wrap=True)]


def _grid(rows: Sequence[Sequence[Text]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for row in rows:
        grid.add_row(*row)
    return grid


def _operation(operation: OperationPicture) -> list[Text]:
    return [
        Text(operation.verb),
        Text(f"job {operation.job}"),
        Text(f"{operation.elapsed_s:.1f} s", justify="right"),
        Text(", ".join(operation.nodes), style="dim", no_wrap=True, overflow="ellipsis"),
    ]


def _events(events: Sequence[str], rows: int) -> list[RenderableType]:
    """Return a heading and the last events in at most `rows` rows."""
    last = events[-(rows - 1) :] if rows > 1 else ()
    return [_heading("last events"), *(Text(line, no_wrap=True, overflow="ellipsis") for line in last)] if last else []
