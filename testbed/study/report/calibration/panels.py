"""Common parts of a calibration's figures: sizes, grids of panels, dots and intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from testbed.measure.robust import Interval
from testbed.study.calibration.fits import Floats
from testbed.study.report.calibration.data import Row, Series, having, spread, values_of
from testbed.study.report.page.style import (
    BLUE,
    GREEN,
    INK,
    MOST_MARKS,
    NARROW_IN,
    ORANGE,
    PURPLE,
    VERMILION,
    WIDE_IN,
    Chart,
    log_scale,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (VERMILION, "D"), (PURPLE, "v"))
_ROW_IN = 0.34


def sized(draw: Callable[[Figure], None]) -> Callable[[Figure], None]:
    """Return `draw` with font sizes that remain legible, at least 9 pt, if a half chart fills a narrow screen."""

    def larger(figure: Figure) -> None:
        import matplotlib as mpl  # noqa: PLC0415  # only to draw

        wide = figure.get_figwidth() > NARROW_IN + 0.5 and figure.get_figwidth() > WIDE_IN - 1.0
        narrow = figure.get_figwidth() <= NARROW_IN + 0.1
        most = 10.0 if wide or narrow else 11.0
        mpl.rcParams.update(  # within the context of the figure's own style
            {
                "font.size": most, "axes.titlesize": most, "axes.labelsize": most, "legend.fontsize": most - 0.75,
                "xtick.labelsize": most - 0.75, "ytick.labelsize": most - 0.75,
            }
        )  # fmt: skip
        draw(figure)

    return larger


def is_narrow(figure: Figure) -> bool:
    """Return whether the figure is the version for narrow screens."""
    return figure.get_figwidth() <= NARROW_IN + 0.1


def panels(figure: Figure, count: int, *, across: int, height_in: float, sharey: bool = False) -> list[Axes]:
    """Return `count` axes, `across` per row (one per row on narrow screens), each `height_in` inches high."""
    columns = 1 if is_narrow(figure) else min(across, count)
    lines = -(-count // columns)
    figure.set_figheight(lines * height_in + 0.45)
    grid = figure.subplots(lines, columns, squeeze=False, sharey=sharey)
    for spare in grid.flat[count:]:
        spare.remove()
    return list(grid.flat[:count])


def legend_above(figure: Figure, axes: Axes, columns: int) -> None:
    """Put the legend of one of the axes above the figure, in as many of `columns` as the labels fit."""
    from matplotlib.collections import PathCollection  # noqa: PLC0415  # only to draw

    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    longest = max(len(label) for label in labels)
    room = int(figure.get_figwidth() * 12)
    fitting = max(1, room // (longest + 6))
    legend = figure.legend(
        handles, labels, loc="outside upper left", ncols=min(columns, fitting, len(labels)), handletextpad=0.4,
        columnspacing=1.2,
    )  # fmt: skip
    for handle in legend.legend_handles:
        if isinstance(handle, PathCollection):
            handle.set_sizes([30.0])
            handle.set_alpha(1.0)


def dots(
    axes: Axes, x: Floats, y: Floats, mark: int, *, label: str = "", total: int | None = None, size: float = 20.0
) -> None:
    """Draw one dot per observation, fainter and smaller if there are many."""
    many = (x.size if total is None else total) > 300
    color, marker = MARKS[mark % len(MARKS)]
    axes.scatter(
        x, y, s=size * 0.5 if many else size, color=color, marker=marker, alpha=0.45 if many else 0.65, linewidths=0,
        zorder=3, label=label or None, rasterized=x.size > MOST_MARKS,
    )  # fmt: skip


def ring(axes: Axes, x: Floats, y: Floats, *, label: str = "") -> None:
    """Mark outliers with a diamond around them."""
    axes.scatter(
        x, y, s=95, facecolors="none", edgecolors=INK, marker="D", linewidths=0.9, zorder=5, label=label or None
    )


def interval_mark(axes: Axes, x: float, y: float, found: Interval, *, upright: bool, label: str = "") -> None:
    """Draw a median as a stroke, and its 95 % interval as an error bar if it has one."""
    bounds = isfinite(found.low) and isfinite(found.high)
    apart = [[max(found.value - found.low, 0.0)], [max(found.high - found.value, 0.0)]] if bounds else None
    axes.errorbar(
        [x], [y], yerr=apart if upright else None, xerr=None if upright else apart, fmt="_" if upright else "|",
        color=INK, markersize=11, markeredgewidth=1.8, elinewidth=1.4, capsize=3, zorder=6, label=label or None,
    )  # fmt: skip


def strips(axes: Axes, rows: Sequence[Series], x_label: str, *, log: bool = False) -> None:
    """Draw a strip plot: one row of dots per series, with its median and interval."""
    for place, row in enumerate(rows):
        values, middle = row.values, row.middle
        dots(axes, values, place + 0.5 * spread(values.size), row.mark, total=values.size)
        interval_mark(
            axes, middle.value, float(place), middle, upright=False,
            label="median and its 95 % interval" if not place else "",
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(x_label)
    if log:
        log_axis(axes, [row.values for row in rows], upright=False)
    else:
        axes.set_xlim(left=0.0)


def strip_chart(
    name: str, title: str, caption: str, alt: str, rows: Sequence[Series], x_label: str, *,
    log: bool = False, around: float | None = None, height_in: float = 3.4,
) -> Chart:  # fmt: skip
    """Return a strip chart: one row of dots per series, with medians and intervals; see `Chart` for the texts.

    With `around`, the axis covers only the values and this expected value, because an axis from 0 would hide small
    differences.
    """

    def draw(figure: Figure) -> None:
        figure.set_figheight(strips_height_in(len(rows)))
        axes = figure.add_subplot()
        strips(axes, rows, x_label, log=log)
        if around is not None:
            axes.axvline(around, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
            _close_up(axes, rows, around)
        legend_above(figure, axes, 1)

    return Chart(name, title, caption, alt, sized(draw), height_in=height_in)


def strip_panels(
    name: str, title: str, caption: str, alt: str, rows: Sequence[Series], observed: Sequence[tuple[str, str]]
) -> Chart:
    """Return a wide chart with one panel of strips per value of the same rows, in seconds, from 0.

    `observed` has the name and the title of each value.
    """

    def draw(figure: Figure) -> None:
        height_in = strips_height_in(len(rows)) - 0.35
        cells = panels(figure, len(observed), across=3, height_in=height_in, sharey=not is_narrow(figure))
        for axes, (key, label) in zip(cells, observed, strict=True):
            known = [replace(row, name=key, rows=having(row.rows, key)) for row in rows]
            strips(axes, [row for row in known if row.rows], "seconds")
            axes.set_title(label, loc="left")
        legend_above(figure, cells[0], 3)

    return Chart(name, title, caption, alt, sized(draw), wide=True)


def _close_up(axes: Axes, rows: Sequence[Series], around: float) -> None:
    known = np.concatenate([row.values for row in rows])
    low, high = min(float(known.min()), around), max(float(known.max()), around)
    room = max(0.08 * (high - low), 0.5)
    axes.set_xlim(max(low - room, 0.0), high + room)


def strips_height_in(rows: int) -> float:
    """Return the height in inches of a strip chart with so many rows, including legend and axis."""
    return 1.15 + _ROW_IN * max(rows, 2)


def log_axis(axes: Axes, values: Sequence[Floats], *, upright: bool) -> None:
    """Make an axis logarithmic with plain numbers if all values are positive, else linear from 0."""
    known = np.concatenate(list(values)) if values else np.zeros(0)
    if not known.size or known.min() <= 0.0:
        (axes.set_ylim if upright else axes.set_xlim)(0.0)
        return
    low, high = float(known.min()) / 1.25, float(known.max()) * 1.25
    log_scale(axes, "y" if upright else "x", low, high)
    (axes.set_ylim if upright else axes.set_xlim)(low, high)


def memory_axis(axes: Axes, most_mib: float) -> None:
    """Set up and label the x axis for memory, from 0."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415  # only to draw

    axes.set_xlabel("memory of a guest (MiB)")
    axes.set_xlim(0.0, most_mib * 1.08)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def seconds_scale(rows: Sequence[Row], name: str) -> tuple[float, str]:
    """Return the factor and the name of a unit (s, ms or µs) that suits the typical duration."""
    typical_s = float(np.median(np.abs(values_of(rows, name)))) if rows else 1.0
    if typical_s < 5e-4:
        return 1e6, "µs"
    return (1e3, "ms") if typical_s < 0.5 else (1.0, "s")
