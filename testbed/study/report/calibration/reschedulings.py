"""Figures over all experiments on reschedulings: penalties against the 300 s of the papers, and two clocks."""

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
    """Return measured penalties on a logarithmic axis that reaches to the 300 s of the papers."""
    name, title = "calibration_penalty", "300 s, as the papers assume, and the penalty here"
    if not series:
        return Absent(name, title, reason)

    def draw(figure: Figure) -> None:
        figure.set_figheight(strips_height_in(len(series)))
        axes = figure.add_subplot()
        strips(axes, series, "seconds of wall time, logarithmic")
        log_axis(axes, [*(one.values for one in series), np.array([PENALTY_S])], upright=False)
        axes.axvline(PENALTY_S, color=VERMILION, linewidth=2.0, linestyle=(0, (4, 2)), label="assumed: 300 s [RR 5.1]")
        legend_above(figure, axes, 3)

    words = listed(series, "s")
    caption = (
        "Wall seconds that a preemption and the restore after it took from a job, save + restore + first progress, "
        "without the pause between; for live migrations what the job felt. One dot an observation, with the median and "
        "its 95 % interval over trials; what a job felt that is not above 0 s has no place on this axis. "
        f"Medians: {words}. {count_words([row for one in series for row in one.rows])}."
    )
    return Chart(name, title, caption, f"Penalties, where 300 s are assumed: {words}", sized(draw), wide=True)


def figure_clocks(clocks: Sequence[Clocks], reason: str) -> Chart | Absent:
    """Return durations by two clocks on logarithmic axes, with the line on which both agree."""
    name, title = "calibration_clocks", "Two clocks"
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
        said.append(f"{pair.title}: {pair.y_label} less {pair.x_label} {interval_words(more, 's')}")
    caption = (
        "One dot an observation; on the line both clocks agree, above it more was felt than was reported. Felt is the "
        "work that the job did not do, by its own count, in seconds of its rate before; without the pause that was "
        f"asked for. Medians with 95 % intervals over trials. {'; '.join(said)}. "
        + " ".join(f"{pair.title}: {count_words(pair.rows)}." for pair in pairs)
    )
    return Chart(name, title, caption, "; ".join(said), sized(draw), wide=True)


def _positive(clocks: Clocks) -> Clocks:
    """Leave out durations that are not above 0: logarithmic axes have no place for them."""
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
