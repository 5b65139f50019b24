"""Gantt charts of one or several schedules: the tasks of each node over time, with yields and reschedulings.

A row is a node. A bar is a task, as high as the memory that it holds and coloured by its yield; times without progress
are hatched. Saved tasks are thin lines on a shelf below their node. Larger schedules are drawn as an image of mean
yields (see `testbed.study.report.run.gantt_dense`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from testbed.study.report.page.style import FAINT, INK
from testbed.study.report.run.gantt_dense import draw_dense
from testbed.study.report.run.lanes import GONE, Bar, Lanes, end_of, lanes_of, longest_run
from testbed.study.report.run.schedule import LIVE, RESTORE, RUNS, SAVE, START, TRANSFER, WAIT, Schedule

YIELDS = "viridis"
MOST_BARS = 4000
MOST_NODES = 32
ROW_IN = 1.5  # greatest height of a node's row
_GAP = 0.22  # gap between rows, as a fraction of a row
_PLACE = 0.09  # greatest height of a place on the shelf, as a fraction of a row
_SHELF = 0.36  # greatest height of the whole shelf, as a fraction of a row
_PT = 72.0  # points per inch
_SMALLEST_PT = 5.5
_EDGE = "#3c444c"
_HELD = "#f4f1ea"  # background of hatched pieces
_HATCH = {START: "....", SAVE: "/////", RESTORE: "\\\\\\\\\\", LIVE: "||||"}
_NAMES = {
    START: "start: guests are created",
    SAVE: "save",
    RESTORE: "restore, until first progress",
    LIVE: "live migration",
    TRANSFER: "transfer of images",
    WAIT: "selected to run, waits",
    GONE: "preempted: not selected to run",
}
_SAVED_DASH: Final[dict[str, Any]] = {GONE: (0, (1, 2)), WAIT: (0, (4, 1.5)), TRANSFER: "-"}


def is_dense(schedule: Schedule) -> bool:
    """Return whether a schedule is drawn as an image instead of single bars."""
    return schedule.nodes > MOST_NODES or len(schedule.spans) > MOST_BARS


def height_in(schedules: Sequence[Schedule]) -> float:
    """Return a suitable height in inches for a figure of these schedules below each other."""
    total = 1.25
    for schedule in schedules:
        row = 0.052 if is_dense(schedule) else min(ROW_IN, 7.0 / max(schedule.nodes, 1))
        total += 0.55 + max(1.2, row * schedule.nodes)
    return total


def draw_gantt(figure: Figure, schedules: Sequence[Schedule]) -> None:
    """Draw Gantt charts below each other into an empty figure, with a common axis of time and common colours."""
    subplots = figure.subplots(
        len(schedules), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": [_weight(s) for s in schedules]}
    )
    all_axes: list[Axes] = list(subplots[:, 0])
    end_s = max((schedule.end_s for schedule in schedules), default=1.0) or 1.0
    kinds: set[str] = set()
    bars: list[tuple[Axes, Rows, Lanes]] = []
    for axes, schedule in zip(all_axes, schedules, strict=True):
        axes.set_xlim(0.0, end_s)
        if len(schedules) > 1:
            axes.set_title(schedule.name, loc="left", fontsize="medium", pad=4 if axes is not all_axes[0] else None)
        if is_dense(schedule):
            draw_dense(axes, schedule, YIELDS)
            continue
        lanes = lanes_of(schedule)
        bars.append((axes, draw_bars(axes, schedule, lanes), lanes))
        kinds |= _visible_kinds(lanes, end_s)
    time_axes(all_axes, schedules[0])
    bar = figure.colorbar(ScalarMappable(Normalize(0.0, 1.0), YIELDS), ax=all_axes, pad=0.012, aspect=28, fraction=0.03)
    bar.set_label("yield")
    bar.outline.set_linewidth(0.4)
    legend(figure, kinds)
    if bars:
        lay_out(figure)
        for axes, rows, lanes in bars:
            label_bars(axes, rows, lanes)


def _weight(schedule: Schedule) -> float:
    return height_in([schedule]) - 1.4


def time_axes(all_axes: Sequence[Axes], schedule: Schedule) -> None:
    """Label the axes of time: wall seconds below the lowest axes, and trace time above the topmost if it differs."""
    unit, per_unit = _unit(schedule.to_trace_s(all_axes[0].get_xlim()[1]))
    if schedule.time_scale == 1.0:
        for axes in all_axes:
            axes.xaxis.set_major_formatter(lambda value, _place: f"{value / per_unit:g}")
        all_axes[-1].set_xlabel(f"trace time ({unit})")
        return
    all_axes[-1].set_xlabel("wall time since the replay began (s)")
    scale = schedule.time_scale / per_unit
    upper = all_axes[0].secondary_xaxis("top", functions=(partial(np.multiply, scale), partial(np.multiply, 1 / scale)))
    upper.set_xlabel(f"trace time ({unit})")
    upper.spines["top"].set_visible(True)


def _unit(seconds: float) -> tuple[str, float]:
    if seconds >= 4 * 86400:
        return "d", 86400.0
    if seconds >= 2 * 3600:
        return "h", 3600.0
    return ("min", 60.0) if seconds >= 600 else ("s", 1.0)


def legend(figure: Figure, kinds: set[str]) -> None:
    """Add a legend of the visible hatches and dashes below the figure."""
    handles: list[Patch | Line2D] = [
        Patch(facecolor=_HELD, edgecolor=_EDGE, hatch=_HATCH[kind], label=_NAMES[kind], linewidth=0.6)
        for kind in (START, SAVE, RESTORE, LIVE)
        if kind in kinds
    ]
    handles += [
        Line2D([], [], color=_EDGE, linewidth=1.8, linestyle=_SAVED_DASH[kind], label=_NAMES[kind])
        for kind in (GONE, WAIT, TRANSFER)
        if kind in kinds
    ]
    if handles:
        columns = max(1, int(figure.get_figwidth() / 2.3))
        figure.legend(handles=handles, loc="outside lower left", ncols=columns, handlelength=2.4, columnspacing=1.4)


def _visible_kinds(lanes: Lanes, end_s: float) -> set[str]:
    """Return the kinds of pieces of which at least one is long enough to be visible."""
    pieces = (piece for bar in (*lanes.in_memory, *lanes.saved) for piece in bar.pieces)
    return {piece.kind for piece in pieces if end_of(piece) - piece.begin_s > end_s * 1e-3}


def draw_bars(axes: Axes, schedule: Schedule, lanes: Lanes) -> Rows:
    """Draw the bars of a schedule; return the positions of its rows."""
    rows = Rows(schedule.nodes, lanes)
    frame_nodes(axes, schedule, rows.centre, rows.bottom(schedule.nodes - 1), rows.top)
    axes.set_ylabel("node (height: memory held)", fontsize="small")
    for node in range(schedule.nodes):
        axes.axhspan(rows.memory(node, 0.0), rows.memory(node, 1.0), color=FAINT, alpha=0.28, linewidth=0, zorder=0.5)
    _draw_pieces(axes, rows, lanes.in_memory, mpl.colormaps[YIELDS])
    _draw_saved(axes, rows, lanes.saved)
    return rows


class Rows:
    """The positions of node rows on the y axis, with node 0 at the top; one unit is the memory of a node."""

    def __init__(self, nodes: int, lanes: Lanes) -> None:
        self.place = min(_PLACE, _SHELF / lanes.shelf) if lanes.shelf else 0.0
        self.shelf = self.place * lanes.shelf + (0.03 if lanes.shelf else 0.0)
        self._pitch = lanes.top + self.shelf + _GAP
        self._nodes = nodes
        self.high = lanes.top
        self.top = (nodes - 1) * self._pitch + lanes.top + _GAP / 2

    def memory(self, node: int, share: float) -> float:
        """Return the y position of a fraction of a node's memory."""
        return (self._nodes - 1 - node) * self._pitch + share

    def saved(self, node: int, place: float) -> float:
        """Return the y position of the middle of a place on a node's shelf."""
        return self.memory(node, -0.03 - self.place * (place + 0.5))

    def centre(self, node: int) -> float:
        """Return the y position of the middle of a node's row."""
        return self.memory(node, (self.high - self.shelf) / 2)

    def bottom(self, node: int) -> float:
        """Return the y position of the lower end of a node's row."""
        return self.memory(node, -self.shelf - _GAP / 2)


def frame_nodes(axes: Axes, schedule: Schedule, centre: Callable[[int], float], bottom: float, top: float) -> None:
    """Label the rows with the names of nodes, and hide the rest of the frame."""
    axes.set_ylim(bottom, top)
    axes.set_yticks([centre(node) for node in range(schedule.nodes)])
    axes.set_yticklabels([schedule.node_name(node) for node in range(schedule.nodes)])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")
    for side in ("left", "right"):
        axes.spines[side].set_visible(False)


def box(begin_s: float, end_s: float, low: float, high: float) -> list[tuple[float, float]]:
    """Return the corners of a rectangle."""
    return [(begin_s, low), (begin_s, high), (end_s, high), (end_s, low)]


def _draw_pieces(axes: Axes, rows: Rows, bars: Sequence[Bar], colours: Colormap) -> None:
    boxes: dict[str, list[list[tuple[float, float]]]] = {}
    yields: dict[str, list[float]] = {}
    for bar in bars:
        low = rows.memory(bar.node, bar.bottom) + 0.008
        high = rows.memory(bar.node, bar.bottom + bar.height) - 0.008
        for piece in bar.pieces:
            boxes.setdefault(piece.kind, []).append(box(piece.begin_s, end_of(piece), low, high))
            yields.setdefault(piece.kind, []).append(piece.yield_frac)
    for kind, own in boxes.items():
        if kind in RUNS:
            collection = PolyCollection(own, array=np.array(yields[kind]), cmap=colours, norm=Normalize(0.0, 1.0))
        else:
            collection = PolyCollection(own, facecolors=_HELD)
        if kind in _HATCH:
            collection.set_hatch(_HATCH[kind])
        collection.set_edgecolor(_EDGE)
        collection.set_linewidth(0.4)
        collection.set_gid(kind)
        axes.add_collection(collection, autolim=False)


def _draw_saved(axes: Axes, rows: Rows, bars: Sequence[Bar]) -> None:
    lines: dict[str, list[list[tuple[float, float]]]] = {}
    for bar in bars:
        y = rows.saved(bar.node, bar.bottom)
        for piece in bar.pieces:
            lines.setdefault(piece.kind, []).append([(piece.begin_s, y), (end_of(piece), y)])
    for kind, own in lines.items():
        axes.add_collection(
            LineCollection(own, colors=INK, linewidths=1.8, linestyles=[_SAVED_DASH[kind]], gid=kind), autolim=False
        )


def lay_out(figure: Figure) -> None:
    """Compute the final layout of the figure, which determines the labels that fit into bars."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def points_per_unit(axes: Axes) -> tuple[float, float]:
    """Return the typographic points per second and per unit of height; the layout must be final."""
    extent = axes.get_window_extent()
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    return extent.width * _PT / axes.figure.dpi / (right - left), extent.height * _PT / axes.figure.dpi / (high - low)


def label_bars(axes: Axes, rows: Rows, lanes: Lanes) -> None:
    """Write the numbers of jobs into bars with enough room; the layout must be final."""
    colours = mpl.colormaps[YIELDS]
    per_unit = points_per_unit(axes)
    for bar in lanes.in_memory:
        best = longest_run(bar)
        red, green, blue, _ = colours(best.yield_frac) if best.kind in RUNS else (1.0, 1.0, 1.0, 1.0)
        ink = "#101010" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "#ffffff"
        y = rows.memory(bar.node, bar.bottom + bar.height / 2)
        write_fitting(axes, bar.job, (best.begin_s, end_of(best)), (y, bar.height), per_unit, color=ink)
    ground = {"boxstyle": "square,pad=0.15", "facecolor": "#ffffff", "edgecolor": "none"}
    for bar in lanes.saved:
        middle = (bar.begin_s * 0.8 + bar.end_s * 0.2, bar.begin_s * 0.2 + bar.end_s * 0.8)
        extent = (rows.saved(bar.node, bar.bottom), rows.place * 1.25)
        write_fitting(axes, bar.job, middle, extent, per_unit, color="#101010", bbox=ground)


def write_fitting(
    axes: Axes, job: int, time_s: tuple[float, float], y: tuple[float, float], per_unit: tuple[float, float],
    **style: Any,
) -> None:  # fmt: skip
    """Write a job's number between two times at (middle, height), unless the font would be too small to read."""
    text = str(job)
    wide_pt, high_pt = (time_s[1] - time_s[0]) * per_unit[0], y[1] * per_unit[1]
    for along_pt, across_pt, rotation in ((wide_pt, high_pt, 0.0), (high_pt, wide_pt, 90.0)):
        size = min(8.5, across_pt * 0.82, (along_pt - 2.0) / (0.66 * len(text)))
        if size >= _SMALLEST_PT:
            axes.text(
                (time_s[0] + time_s[1]) / 2, y[0], text, fontsize=size, rotation=rotation, ha="center",
                va="center" if rotation else "center_baseline", clip_on=True, zorder=4, **style,
            )  # fmt: skip
            return
