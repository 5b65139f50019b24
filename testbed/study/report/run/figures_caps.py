"""Figures of requested against achieved CPU caps, by the program that ran under them."""

# ruff: noqa: RUF001 - signs of mathematics and dashes, for people to read

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from testbed.study.report.page.style import (
    BLUE,
    INK,
    MOST_MARKS,
    ORANGE,
    Absent,
    Chart,
    legend_outside,
    short,
    single_axes,
)
from testbed.study.report.run.facts import RunFacts

_MARKS = ((BLUE, "o", "///"), (ORANGE, "s", "\\\\\\"))
_SHORT_S = 5.0
_LEAST_WINDOWS = 5
Floats = NDArray[np.float64]


def _by_program(facts: RunFacts, caps: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    jobs = caps["job"].unique().sort().to_list()
    table = pl.DataFrame(
        {"job": jobs, "program": [facts.program_of(int(job)) for job in jobs]},
        schema={"job": caps.schema["job"], "program": pl.String},
    )
    if "drifted" in caps.columns:  # leave out windows whose cap may have changed before their last sample
        caps = caps.filter(~pl.col("drifted").fill_null(value=False))
    known = caps.join(table, on="job", how="left", maintain_order="left").drop_nulls(
        ["requested_cores", "achieved_cores", "window_s"]
    )
    names = sorted(known["program"].unique().to_list())
    return [(name, known.filter(pl.col("program") == name)) for name in names]


def figures_caps(facts: RunFacts, caps: pl.DataFrame | None) -> list[Chart | Absent]:
    """Return a scatter plot of achieved against requested caps, and a histogram of their differences."""
    groups = [] if caps is None or caps.is_empty() else _by_program(facts, caps)
    groups = [(short(name, 24), table) for name, table in groups if not table.is_empty()]
    if not groups:
        reason = "No cap was constant for long enough, without another operation, for a window of CPU use."
        return [Absent("caps", "CPU caps", reason)]
    values = [
        (name, table["requested_cores"].to_numpy(), table["achieved_cores"].to_numpy(), table["window_s"].to_numpy())
        for name, table in groups
    ]
    count = sum(requested.size for _, requested, _, _ in values)
    windows_s = np.concatenate([window_s for *_, window_s in values])
    shortest_s, longest_s = float(windows_s.min()), float(windows_s.max())
    counts = ", ".join(f"{requested.size} of {name}" for name, requested, _, _ in values)
    per_program = "; ".join(_words(name, *rest) for name, *rest in values)

    def scatter(figure: Figure) -> None:
        axes = single_axes(figure, "cap requested (cores)", "CPU achieved (cores)")
        most = max(float(max(requested.max(), achieved.max())) for _, requested, achieved, _ in values) * 1.06
        axes.plot([0, most], [0, most], color=INK, linewidth=0.8, linestyle=(0, (4, 2)), label="achieved = requested")
        for (name, requested, achieved, _window), (color, marker, _) in zip(values, _MARKS * len(values), strict=False):
            axes.scatter(
                requested, achieved, s=20 if count < 300 else 7, color=color, marker=marker, linewidths=0, label=name,
                alpha=0.8 if count < 300 else 0.35, rasterized=count > MOST_MARKS, zorder=3,
            )  # fmt: skip
            if spread := _spread(requested, achieved):
                level, mean, deviation = np.array(spread).T
                axes.errorbar(
                    level, mean, yerr=deviation, fmt="none", ecolor=INK, elinewidth=1.0, capsize=2.5, zorder=4,
                    label="mean ± standard deviation" if name == values[0][0] else None,
                )  # fmt: skip
        axes.set_xlim(0, most)
        axes.set_ylim(0, most)
        legend_outside(figure, 2)

    def histogram(figure: Figure) -> None:
        axes = single_axes(figure, "achieved − requested (percentage points of a core)", "windows")
        errors = [(achieved - requested) * 100 for _, requested, achieved, _ in values]
        low, high = np.quantile(np.concatenate(errors), (0.005, 0.995))
        edge = max(abs(float(low)), abs(float(high)), 0.5) * 1.02
        bins = np.linspace(-edge, edge, 41).tolist()
        for (name, *_), error, (color, _, hatch) in zip(values, errors, _MARKS * len(values), strict=False):
            axes.hist(
                np.clip(error, -edge, edge), bins=bins, histtype="stepfilled", facecolor=(color, 0.35), edgecolor=color,
                hatch=hatch, label=name, linewidth=1.0,
            )  # fmt: skip
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        legend_outside(figure, 2)

    what = (
        f"CPU use of guests in cores, over windows of {shortest_s:.1f} to {longest_s:.1f} s with a constant cap and "
        f"without other operations; n = {count} windows ({counts})."
    )
    return [
        Chart(
            "caps", "CPU caps: requested and achieved",
            f"{what} Bars: mean ± standard deviation of caps that are equal to a tenth of a core, for at least "
            f"{_LEAST_WINDOWS} windows. A program that waits for messages may use less than its cap, which is no error "
            "of the cap.",
            f"Achieved against requested caps: {per_program}", scatter,
        ),
        Chart(
            "cap_error", "CPU caps: error",
            "Achieved minus requested CPU use of the same windows, in percentage points of a core; the outermost 0.5 % "
            f"on either side are in the outermost bars. {per_program}.",
            f"Histogram of cap errors: {per_program}", histogram,
        ),
    ]  # fmt: skip


def _spread(requested: Floats, achieved: Floats) -> list[tuple[float, float, float]]:
    """Return (mean requested, mean achieved, its standard deviation) for each tenth of a core with enough windows."""
    levels = np.round(requested, 1)
    groups = [(requested[levels == level], achieved[levels == level]) for level in np.unique(levels)]
    return [
        (float(caps.mean()), float(own.mean()), float(own.std(ddof=1)))
        for caps, own in groups
        if own.size >= _LEAST_WINDOWS
    ]


def _words(name: str, requested: Floats, achieved: Floats, window_s: Floats) -> str:
    """Return the mean absolute error and percentiles of long windows as text, as in the metric `cap_error_mean`."""
    error = (achieved - requested)[window_s >= _SHORT_S] * 100
    if not error.size:
        return f"{name}: no window of at least {_SHORT_S:g} s"
    low, high = np.quantile(error, (0.05, 0.95))
    return (
        f"{name}: mean |error| {np.abs(error).mean():.2f}, 5 to 95 % {low:+.2f} to {high:+.2f} pp "
        f"over {error.size} windows of at least {_SHORT_S:g} s"
    )
