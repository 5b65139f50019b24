"""The figure of the bandwidth of saves, transfers, restores and live migrations over time."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.figure import Figure
from numpy.typing import NDArray

from testbed.study.report.page.style import BLUE, GREEN, ORANGE, VERMILION, Absent, Chart, legend_outside, single_axes
from testbed.study.report.run.facts import RunFacts

_NAME, _TITLE = "bandwidth", "Bandwidth of operations"
_VERBS = (
    ("save", "saves", BLUE, "///"),
    ("transfer", "transfers", ORANGE, "\\\\\\"),
    ("restore", "restores", GREEN, "|||"),
    ("migrate", "live migrations", VERMILION, "xxx"),
)
_BINS = 240
Floats = NDArray[np.float64]


def mean_rates(begin_s: Floats, end_s: Floats, amounts: Floats, edges_s: Floats) -> Floats:
    """Return the mean rate per bin (bins,) of operations that move their amounts at a constant rate from begin to end.

    The result is exact: the moved amount is piecewise linear in time, and its differences give the means.
    """
    lengths = np.maximum(end_s - begin_s, 1e-9)
    times = np.concatenate((begin_s, begin_s + lengths))
    slopes = np.concatenate((amounts / lengths, -amounts / lengths))
    order = np.argsort(times, kind="stable")
    times, slopes = times[order], slopes[order]
    moved = np.concatenate(([0.0], np.cumsum(np.cumsum(slopes)[:-1] * np.diff(times))))
    return np.asarray(np.maximum(np.diff(np.interp(edges_s, times, moved)), 0.0) / np.diff(edges_s), dtype=np.float64)


def figure_traffic(facts: RunFacts, actions: pl.DataFrame | None) -> Chart | Absent:
    """Return a stacked chart of GB per wall second by kind of operation."""
    if actions is None or actions.is_empty() or facts.anchor_ns is None:
        return Absent(_NAME, _TITLE, "This run has no points of operations.")
    moved = actions.filter((pl.col("bytes") > 0) & pl.col("elapsed_s").is_not_null())
    if moved.is_empty():
        return Absent(_NAME, _TITLE, "No operation of this run moved bytes.")
    zero_ns = facts.anchor_ns + int(facts.replay_begin_s * 1e9)
    table = moved.select(
        verb=pl.col("verb").cast(pl.String),
        end_s=(pl.col("time").dt.epoch("ns") - zero_ns) / 1e9,
        elapsed_s="elapsed_s",
        bytes="bytes",
    )
    last_s = max(facts.history.last_s - facts.replay_begin_s, float(table["end_s"].to_numpy().max()), 1e-6)
    edges_s = np.linspace(0.0, last_s, _BINS + 1)
    rates, counts = [], []
    for verb, label, color, hatch in _VERBS:
        own = table.filter(pl.col("verb") == verb)
        if own.is_empty():
            continue
        end_s = own["end_s"].to_numpy()
        amounts = own["bytes"].to_numpy().astype(np.float64)
        rate = mean_rates(end_s - own["elapsed_s"].to_numpy(), end_s, amounts, edges_s) / 1e9
        rates.append((label, color, hatch, rate))
        counts.append(f"{own.height} {label} of {amounts.sum() / 1e9:.3g} GB")
    minutes = edges_s / 60.0
    total = np.sum([rate for *_, rate in rates], axis=0)

    def draw(figure: Figure) -> None:
        axes = single_axes(figure, "wall time since the replay began (min)", "GB/s")
        base = np.zeros(_BINS)
        for label, color, hatch, rate in rates:
            axes.stairs(
                base + rate, minutes, baseline=base, fill=True, facecolor=(color, 0.55), edgecolor=color, linewidth=0.3,
                hatch=hatch if len(rates) > 1 else None, label=label,
            )  # fmt: skip
            base = base + rate
        axes.set_xlim(0.0, minutes[-1])
        axes.set_ylim(bottom=0.0)
        legend_outside(figure, 4)

    caption = (
        f"10⁹ bytes per wall second that operations moved, stacked by kind, as means over {last_s / _BINS:.3g} s; the "
        f"bytes of an operation are spread evenly over its duration. n = {', '.join(counts)}."
    )
    alt = f"Stacked bandwidth over time: highest {total.max():.3g} GB/s, mean {total.mean():.3g} GB/s"
    return Chart(_NAME, _TITLE, caption, alt, draw, height_in=2.8, wide=True)
