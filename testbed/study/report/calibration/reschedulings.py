"""Figures over all experiments on reschedulings: penalties against the papers' 300 s, and comparisons of clocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from testbed.study.calibration.assumptions import PENALTY_S
from testbed.study.calibration.fits import median_interval
from testbed.study.report.calibration.data import Clocks, Series, count_words, interval_words, listed, trials_of
from testbed.study.report.calibration.panels import (
    dots,
    legend_above,
    log_axis,
    panels,
    sized,
    strips,
    strips_height_in,
)
from testbed.study.report.page.style import INK, VERMILION, Absent, Chart, log_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def figure_assumed(series: Sequence[Series], reason: str) -> Chart | Absent:
    """Return a strip chart of measured penalties on a logarithmic axis that includes the papers' 300 s."""
    name, title = "calibration_penalty", "Rescheduling penalties: measured, and assumed by the papers (300 s)"
    if not series:
        return Absent(name, title, reason)

    def draw(figure: Figure) -> None:
        figure.set_figheight(strips_height_in(len(series)))
        axes = figure.add_subplot()
        strips(axes, series, "penalty (wall s, logarithmic)")
        log_axis(axes, [*(one.values for one in series), np.array([PENALTY_S])], upright=False)
        axes.axvline(PENALTY_S, color=VERMILION, linewidth=2.0, linestyle=(0, (4, 2)), label="assumed: 300 s [RR 5.1]")
        legend_above(figure, axes, 3)

    words = listed(series, "s")
    caption = (
        "Wall seconds that a preemption with its restore costs a job: save + restore + first progress, without the "
        "pause between them. For live migrations: the felt time. One dot per observation, with the median and its 95 % "
        "interval over trials. Felt times of 0 s or less are not on this logarithmic axis. "
        f"Medians: {words}. {count_words([row for one in series for row in one.rows])}."
    )
    return Chart(name, title, caption, f"Measured penalties (assumed: 300 s): {words}", sized(draw), wide=True)


def figure_clocks(clocks: Sequence[Clocks], reason: str) -> Chart | Absent:
    """Return scatter plots of durations by two clocks on logarithmic axes, with the line of agreement."""
    name, title = "calibration_clocks", "The same durations by two clocks"
    pairs = [one for one in map(_positive, clocks) if one.rows]
    if not pairs:
        return Absent(name, title, reason)

    def draw(figure: Figure) -> None:
        cells = panels(figure, len(pairs), across=3, height_in=3.2)
        for axes, pair in zip(cells, pairs, strict=True):
            _draw(axes, pair)
        legend_above(figure, cells[0], 3)

    said = []
    for pair in pairs:
        more = median_interval(pair.y_s - pair.x_s, trials_of(pair.rows))
        said.append(f"{pair.title}: {pair.y_label} minus {pair.x_label} {interval_words(more, 's')}")
    caption = (
        "Wall seconds by two clocks; one dot per observation. On the line both clocks agree; above it the second clock "
        "(y axis) shows a longer duration. Felt: the work that the job did not do, by its own count, divided by its "
        "rate before, without requested pauses. Median differences with 95 % intervals over trials: "
        f"{'; '.join(said)}. " + " ".join(f"{pair.title}: {count_words(pair.rows)}." for pair in pairs)
    )
    return Chart(name, title, caption, "; ".join(said), sized(draw), wide=True)


def _positive(clocks: Clocks) -> Clocks:
    """Return the durations above 0, as logarithmic axes cannot show the others."""
    kept = (clocks.x_s > 0.0) & (clocks.y_s > 0.0)
    rows = [row for row, keep in zip(clocks.rows, kept.tolist(), strict=True) if keep]
    return Clocks(clocks.title, clocks.x_label, clocks.y_label, clocks.x_s[kept], clocks.y_s[kept], rows)


def _draw(axes: Axes, pair: Clocks) -> None:
    low = 0.8 * min(pair.x_s.min(), pair.y_s.min())
    high = 1.25 * max(pair.x_s.max(), pair.y_s.max())
    axes.plot([low, high], [low, high], color=INK, linewidth=0.9, linestyle=(0, (4, 2)), label="both agree")
    dots(axes, pair.x_s, pair.y_s, 0, label="observation", total=pair.x_s.size)
    log_scale(axes, "x", float(low), float(high))
    log_scale(axes, "y", float(low), float(high))
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_xlabel(pair.x_label)
    axes.set_ylabel(pair.y_label)
    axes.set_title(pair.title, loc="left")
    axes.set_aspect("equal" if np.isfinite(low) else "auto", adjustable="box")
