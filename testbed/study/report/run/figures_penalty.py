"""The figure of rescheduling penalties against the memory that was moved; [RR 5.1] assumes 300 s for each."""

# ruff: noqa: RUF001 - signs of mathematics and dashes, for people to read

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from testbed.measure.robust import LEAST_DISTINCT, Fit, robust_fit
from testbed.run.events import Rescheduling
from testbed.study.report.page.style import (
    BLUE,
    INK,
    MOST_MARKS,
    ORANGE,
    VERMILION,
    Absent,
    Chart,
    legend_outside,
    single_axes,
)
from testbed.study.report.run.facts import RunFacts

_NAME, _TITLE = "penalty", "Rescheduling penalty against memory"
_KINDS = (
    ("preemption", "save-restore", "preemption", BLUE, "o"),
    ("migration", "save-restore", "migration by save and restore", ORANGE, "s"),
    ("migration", "live", "live migration: downtime and first progress", VERMILION, "^"),
)


def _of_kind(found: Sequence[Rescheduling], reason: str, mechanism: str) -> list[tuple[float, float, int]]:
    """Return (GB, penalty s, job) of the reschedulings of one kind."""
    return [
        (max(each.saved_bytes, each.migrated_bytes) / 1e9, each.penalty_s, each.job)
        for each in found
        if (each.reason, each.mechanism) == (reason, mechanism)
    ]


def fit_words(fit: Fit | None, what: str) -> str:
    """Return a sentence for the caption: the fitted line a + m / rate, the fitted constant, or that there is no fit."""
    if fit is None:
        return f"No line is fitted to penalties {what}: fewer than {LEAST_DISTINCT} distinct points."
    n = f"n = {fit.count} of {fit.clusters} jobs; 95 % bootstrap over jobs"
    first = f"{fit.intercept.value:.2f} s ({fit.intercept.low:.2f} to {fit.intercept.high:.2f})"
    if fit.slope is None:
        return f"{what.capitalize()}: the data support no dependence on memory; median penalty {first}; {n}."
    if fit.slope.low < 0:
        low, high = fit.slope.low, fit.slope.high
        return f"{what.capitalize()}: {first} + m × {fit.slope.value:.2f} s/GB ({low:.2f} to {high:.2f}); {n}."
    rate = f"{1 / fit.slope.value:.3f} GB/s ({1 / fit.slope.high:.3f} to {1 / fit.slope.low:.3f})"
    return f"{what.capitalize()}: penalty = a + m / rate with a = {first}, rate = {rate}; {n}."


def figure_penalty(facts: RunFacts) -> Chart | Absent:
    """Return a scatter plot of penalties against bytes, with a robust line for those by save and restore."""
    if not facts.reschedulings:
        return Absent(_NAME, _TITLE, "No preemption or migration was completed in this run.")
    kinds = [
        (points, label, color, marker)
        for reason, mechanism, label, color, marker in _KINDS
        if (points := _of_kind(facts.reschedulings, reason, mechanism))
    ]
    stored = [
        point for reason, way, *_ in _KINDS if way != "live" for point in _of_kind(facts.reschedulings, reason, way)
    ]
    fit = robust_fit(*zip(*stored, strict=True)) if stored else None
    most_gb = max(point[0] for points, *_ in kinds for point in points)

    def draw(figure: Figure) -> None:
        axes = single_axes(figure, "moved memory of the job (GB)", "penalty (wall s)")
        total = sum(len(points) for points, *_ in kinds)
        for points, label, color, marker in kinds:
            gigabytes, penalties_s, _jobs = zip(*points, strict=True)
            axes.scatter(
                gigabytes, penalties_s, s=22 if total < 200 else 9, color=color, marker=marker, label=label, zorder=3,
                alpha=0.85 if total < 200 else 0.5, linewidths=0, rasterized=total > MOST_MARKS,
            )  # fmt: skip
        if fit is not None:
            x = np.array([0.0, most_gb * 1.05])
            slope = 0.0 if fit.slope is None else fit.slope.value
            label = "median" if fit.slope is None else "robust fit a + m / rate"
            axes.plot(x, fit.intercept.value + slope * x, color=INK, linewidth=1.2, label=label, zorder=4)
        axes.set_xlim(left=0.0, right=max(most_gb * 1.08, 1e-3))
        axes.set_ylim(bottom=0.0)
        legend_outside(figure, 2)

    count = len(facts.reschedulings)
    caption = (
        "Penalty of each completed preemption and migration in wall seconds (save + wait + transfer + restore + "
        "downtime + first progress), against the bytes that were written or sent once for all tasks of the job, in "
        f"10⁹ bytes; n = {count}. Pauses, in which the policy did not select the job, are not included. "
        + (fit_words(fit, "by save and restore") if stored else "")
    )
    penalties = [each.penalty_s for each in facts.reschedulings]
    alt = f"{count} penalties, median {np.median(penalties):.2f} s, maximum {max(penalties):.2f} s"
    return Chart(_NAME, _TITLE, caption.strip(), alt, draw)
