"""The figure of the distribution of the bounded stretch over jobs, for one run or several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from testbed.study.report.page.style import (
    CYCLE,
    DASHES,
    INK,
    Absent,
    Chart,
    legend_outside,
    log_scale,
    short,
    single_axes,
)
from testbed.study.report.run.facts import RunFacts

_NAME, _TITLE = "stretch", "Bounded stretch"


def run_labels(runs: Sequence[RunFacts]) -> list[str]:
    """Return a label per run: its policy, with its directory if several runs have the same policy."""
    policies = [run.policy for run in runs]
    return [run.policy if policies.count(run.policy) == 1 else f"{run.policy}, {run.name}" for run in runs]


def _bound(run: RunFacts) -> float | None:
    value = run.metrics.get("bound", {}).get("value")
    return None if value is None else float(value)


def figure_stretch(runs: Sequence[RunFacts]) -> Chart | Absent:
    """Return a chart of the empirical distribution of the bounded stretch, with the lower bound of the maximum."""
    lines = []
    for run, label in zip(runs, run_labels(runs), strict=True):
        stretches = np.sort([job.stretch for job in run.jobs if job.stretch is not None])
        if stretches.size:
            lines.append((run, label, stretches))
    if not lines:
        return Absent(_NAME, _TITLE, "No job was done, so that no stretch is known.")
    bounds = sorted({value for run, _, _ in lines if (value := _bound(run)) is not None})

    def draw(figure: Figure) -> None:
        axes = single_axes(figure, f"bounded stretch (τ = {lines[0][0].tau_s:g} s)", "fraction of jobs")
        for place, (_run, label, stretches) in enumerate(lines):
            axes.ecdf(
                stretches, color=CYCLE[place % len(CYCLE)], linestyle=DASHES[place // len(CYCLE) % len(DASHES)],
                label=short(label, 56) if len(lines) > 1 else "jobs",
            )  # fmt: skip
            axes.plot(stretches[-1], 1.0, "o", color=CYCLE[place % len(CYCLE)], markersize=4, clip_on=False)
        for place, bound in enumerate(bounds):
            axes.axvline(
                bound, color=INK, linestyle=(0, (4, 2)), linewidth=1.0,
                label="" if place else "lower bound of the maximum",
            )  # fmt: skip
        least = min(1.0, *(stretches[0] for _, _, stretches in lines))
        most = max(*bounds, *(stretches[-1] for _, _, stretches in lines), 1.2 * least)
        log_scale(axes, "x", least, most)
        axes.set_xlim(least * 0.97, most * 1.06)
        axes.set_ylim(0.0, 1.02)
        legend_outside(figure, 2 if len(lines) == 1 else 1)

    counts = " + ".join(str(stretches.size) for _, _, stretches in lines)
    caption = (
        "Fraction of done jobs whose bounded stretch, max(turnaround, τ) / max(run time, τ) with "
        f"τ = {lines[0][0].tau_s:g} s, is at most x (no unit, logarithmic axis); n = {counts} jobs. "
        + (
            "Dashed: the lower bound of the maximum under any schedule, "
            f"{', '.join(f'{bound:.3g}' for bound in bounds)}."
            if bounds
            else "The lower bound is unknown, because not every job is done."
        )
    )
    alt = "; ".join(
        f"{label}: median stretch {np.median(stretches):.3g}, maximum {stretches[-1]:.3g}"
        for _, label, stretches in lines
    )
    return Chart(_NAME, _TITLE, caption, alt, draw, height_in=3.2 + 0.16 * max(0, len(lines) - 2))
