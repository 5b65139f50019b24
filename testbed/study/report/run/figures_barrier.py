"""The figure of superstep noise of jobs that exchange messages: the longest superstep over the mean superstep."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from testbed.study.report.page.style import (
    BLUE,
    INK,
    ORANGE,
    SKY,
    Absent,
    Chart,
    legend_outside,
    log_scale,
    single_axes,
)

_NAME, _TITLE = "supersteps", "Superstep noise"
_NAMED_JOBS = 40


def superstep_noise(supersteps: pl.DataFrame) -> pl.DataFrame:
    """Return one row per job, sorted by median: quantiles of max / mean over its points, and communication share."""
    known = supersteps.filter((pl.col("steps") > 1) & (pl.col("mean_s") > 0)).with_columns(
        noise=pl.col("max_s") / pl.col("mean_s")
    )
    busy_s = pl.col("comm_s").sum() + pl.col("compute_s").sum()
    return (
        known.group_by("job")
        .agg(
            low=pl.col("noise").quantile(0.05),
            median=pl.col("noise").median(),
            high=pl.col("noise").quantile(0.95),
            most=pl.col("noise").max(),
            points=pl.len(),
            steps=pl.col("steps").sum(),
            communication_frac=pl.when(busy_s > 0).then(pl.col("comm_s").sum() / busy_s),
        )
        .sort("median", "job")
    )


def figure_supersteps(supersteps: pl.DataFrame | None) -> Chart | Absent:
    """Return a chart of max / mean of superstep times per job: median, 5 to 95 %, maximum."""
    if supersteps is None or supersteps.is_empty():
        return Absent(
            _NAME,
            _TITLE,
            "This run has no points of supersteps: no job exchanged messages, or its agents did not report them.",
        )
    table = superstep_noise(supersteps)
    if table.is_empty():
        return Absent(_NAME, _TITLE, "No point of this run covers more than one superstep.")
    ranks = list(range(table.height))
    few = table.height <= _NAMED_JOBS

    def draw(figure: Figure) -> None:
        axes = single_axes(figure, "job" if few else "jobs, sorted by median", "longest / mean superstep")
        columns = {name: table[name].to_list() for name in ("low", "median", "high", "most")}
        if few:
            axes.vlines(ranks, columns["low"], columns["high"], color=SKY, linewidth=4, label="5 to 95 % of points")
            labels = [str(job) for job in table["job"].to_list()]
            turned = len(labels) > 10
            axes.set_xticks(ranks, labels, rotation=90 if turned else 0, fontsize=7 if turned else None)
        else:
            axes.fill_between(
                ranks, columns["low"], columns["high"], color=SKY, alpha=0.5, linewidth=0, label="5 to 95 % of points"
            )
        axes.plot(ranks, columns["most"], "_", color=ORANGE, markersize=7 if few else 3, label="maximum")
        axes.plot(
            ranks, columns["median"], "o" if few else "-", color=BLUE, markersize=4, linewidth=1.4, label="median"
        )
        axes.axhline(1.0, color=INK, linewidth=0.6)
        most = max(*columns["most"], 1.5)
        log_scale(axes, "y", 1.0, most)
        axes.set_ylim(0.95, most * 1.1)
        legend_outside(figure, 3)

    shares = table["communication_frac"].drop_nulls().to_numpy()
    words = (
        f" Fraction of communication and waiting in the time of a job's ranks: median {np.median(shares):.0%}."
        if shares.size
        else ""
    )
    caption = (
        "Longest over mean superstep, which is one iteration of computing and exchanging messages, among the "
        "supersteps of a rank between two telemetry points (no unit, logarithmic axis; 1 is no noise). "
        f"n = {int(table['points'].sum()):,} points of {table.height} jobs, {int(table['steps'].sum()):,} supersteps."
        f"{words}"
    )
    middle = float(np.median(table["median"].to_numpy()))
    alt = f"Superstep noise of {table.height} jobs: the median of medians is {middle:.3g}"
    return Chart(_NAME, _TITLE, caption, alt, draw)
