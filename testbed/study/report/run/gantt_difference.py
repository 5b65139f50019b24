"""The Gantt chart of a difference: above each node's line the tasks of only the first schedule, below it the second."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from testbed.study.report.page.style import BLUE, INK, ORANGE
from testbed.study.report.run.difference import Difference
from testbed.study.report.run.gantt import (
    box,
    frame_nodes,
    is_dense,
    lay_out,
    points_per_unit,
    time_axes,
    write_fitting,
)
from testbed.study.report.run.gantt_dense import cells_of
from testbed.study.report.run.lanes import Bar, height_of, pack
from testbed.study.report.run.schedule import RUN, Schedule, Span

_PITCH = 2.3  # distance of node rows: one unit above the line, one below it, and a gap
_EDGE = "#3c444c"
_HATCH = "////"


def difference_height_in(found: Difference) -> float:
    """Return a suitable height for the figure, in inches."""
    dense = is_dense(found.first) or is_dense(found.second)
    return 1.5 + max(1.2, found.first.nodes * (0.052 if dense else min(1.6, 8.0 / max(found.first.nodes, 1))))


def draw_difference(figure: Figure, found: Difference) -> None:
    """Draw a difference into an empty figure: bars as high as their tasks' memory, or an image of CPU for many bars."""
    axes = figure.add_subplot()
    axes.set_xlim(0.0, max(found.first.end_s, found.second.end_s) or 1.0)
    if is_dense(found.first) or is_dense(found.second):
        _draw_picture(figure, axes, found)
        time_axes([axes], found.first)
        return
    halves = _halves(found)
    nodes = found.first.nodes
    frame_nodes(
        axes, found.first, lambda node: _line(nodes, node), _line(nodes, nodes - 1) - 1.15, _line(nodes, 0) + 1.15
    )
    axes.set_ylabel("node (height: memory held)", fontsize="small")
    for node in range(nodes):
        axes.axhline(_line(nodes, node), color=INK, linewidth=0.8, zorder=3)
    styles: list[dict[str, Any]] = [{"facecolors": ORANGE}, {"facecolors": BLUE, "hatch": _HATCH}]
    for bars, sign, style in zip(halves, (1.0, -1.0), styles, strict=True):
        boxes = [box(bar.begin_s, bar.end_s, *sorted(_extent(nodes, bar, sign))) for bar in bars]
        axes.add_collection(PolyCollection(boxes, edgecolors=_EDGE, linewidths=0.4, **style), autolim=False)
    time_axes([axes], found.first)
    figure.legend(
        handles=[
            Patch(facecolor=ORANGE, edgecolor=_EDGE, label=f"above the line: only in {found.first.name}"),
            Patch(facecolor=BLUE, edgecolor=_EDGE, hatch=_HATCH, label=f"below the line: only in {found.second.name}"),
        ],
        loc="outside lower left",
        ncols=2 if figure.get_figwidth() > 6 else 1,
    )
    lay_out(figure)
    per_unit = points_per_unit(axes)
    for bars, sign in zip(halves, (1.0, -1.0), strict=True):
        for bar in bars:
            y = sum(_extent(nodes, bar, sign)) / 2
            ground = {"boxstyle": "square,pad=0.1", "facecolor": BLUE, "edgecolor": "none"} if sign < 0 else None
            write_fitting(
                axes, bar.job, (bar.begin_s, bar.end_s), (y, bar.height), per_unit,
                color="#101010" if sign > 0 else "#ffffff", bbox=ground,
            )  # fmt: skip


def _line(nodes: int, node: int) -> float:
    return (nodes - 1 - node) * _PITCH


def _extent(nodes: int, bar: Bar, sign: float) -> tuple[float, float]:
    line = _line(nodes, bar.node)
    return line + sign * bar.bottom, line + sign * (bar.bottom + bar.height)


def _halves(found: Difference) -> tuple[list[Bar], list[Bar]]:
    """Return the bars of tasks that ran only in the first schedule, and only in the second, packed by node."""
    halves: list[list[tuple[Span, ...]]] = [[], []]
    for cell in found.cells:
        for task in range(abs(cell.more)):
            span = Span(cell.job, task, cell.node, cell.begin_s, cell.end_s, RUN, 1.0)
            halves[cell.more < 0].append((span,))
    first, second = (
        pack(half, lambda span, own=own: height_of(own, span), 1.0)  # type: ignore[misc]  # a default binds the loop's value
        for half, own in zip(halves, (found.first, found.second), strict=True)
    )
    return first, second


def _draw_picture(figure: Figure, axes: Axes, found: Difference) -> None:
    """Draw an image of the difference in used CPU, first minus second schedule, by node and time."""
    end_s = axes.get_xlim()[1]
    more = _used(found.first, end_s) - _used(found.second, end_s)
    image = axes.imshow(
        more, cmap="PuOr_r", vmin=-1.0, vmax=1.0, aspect="auto", interpolation="none",
        extent=(0.0, end_s, found.first.nodes - 0.5, -0.5),
    )  # fmt: skip
    axes.grid(visible=False)
    shown = range(0, found.first.nodes, max(1, -(-found.first.nodes // 16)))
    axes.set_yticks(list(shown), [found.first.node_name(node) for node in shown])
    bar = figure.colorbar(image, ax=axes, pad=0.012, aspect=28, fraction=0.03)
    bar.set_label(f"used CPU of a node: only {found.first.name} (1) to only {found.second.name} (-1)")


def _used(schedule: Schedule, end_s: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    return cells_of(schedule, end_s).used_cpu
