"""Two clocks: what controller, agent and hypervisor reported of an operation, and what the job felt of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from testbed.calibration.fits import Floats, median_interval
from testbed.calibration.trials import Trials
from testbed.report.calibration_data import Row, column, count_words, having, interval_words, rows_of, trials_of
from testbed.report.calibration_panels import dots, legend_above, panels, sized
from testbed.report.style import INK, Absent, Chart, log_ticks

_NAME, _TITLE = "calibration_clocks", "Two clocks"


@dataclass(frozen=True, slots=True)
class _Pair:
    title: str
    x_label: str
    y_label: str
    told: Floats
    seen: Floats
    rows: list[Row]


def figure_clocks(trials: Trials, reason: str) -> Chart | Absent:
    """Return reported against observed times, on logarithmic axes with the line on which both agree."""
    pairs = _pairs(trials)
    if not pairs:
        return Absent(_NAME, _TITLE, reason)

    def draw(figure: Figure) -> None:
        cells = panels(figure, len(pairs), across=3, height_in=3.2)
        for axes, pair in zip(cells, pairs, strict=True):
            _draw(axes, pair)
        legend_above(figure, cells[0], 3)

    said = []
    for pair in pairs:
        more = median_interval(pair.seen - pair.told, trials_of(pair.rows))
        said.append(f"{pair.title}: {pair.y_label} less {pair.x_label} {interval_words(more, 's')}")
    caption = (
        "One dot an observation; on the line both clocks agree, above it more was felt than was reported. Felt is the "
        "work that the job did not do, by its own count, in seconds of its rate before; without the pause that was "
        f"asked for. Medians with 95 % intervals over trials. {'; '.join(said)}. "
        + " ".join(f"{pair.title}: {count_words(pair.rows)}." for pair in pairs)
    )
    return Chart(_NAME, _TITLE, caption, "; ".join(said), sized(draw), wide=True)


def _pairs(trials: Trials) -> list[_Pair]:
    """Return what can be held against each other; values that are not above 0 cannot be drawn and are left out."""
    found = []
    stored = having(rows_of(trials, "save-restore"), "write_reported_s", "sync_reported_s", "save_s")
    written = column(stored, "write_reported_s") + column(stored, "sync_reported_s")
    found.append(_pair("Save", "agent: write + sync (s)", "controller: save (s)", written, "save_s", stored))
    felt = having(rows_of(trials, "save-restore"), "penalty_s", "felt_s")
    found.append(
        _pair("Rescheduling", "controller: penalty (s)", "job: felt (s)", column(felt, "penalty_s"), "felt_s", felt)
    )
    live = having(rows_of(trials, "live-migration"), "downtime_reported_s", "felt_s")
    down = column(live, "downtime_reported_s")
    found.append(_pair("Live migration", "hypervisor: downtime (s)", "job: felt (s)", down, "felt_s", live))
    return [one for one in found if one is not None]


def _pair(title: str, x_label: str, y_label: str, told: Floats, seen: str, rows: list[Row]) -> _Pair | None:
    values = column(rows, seen)
    kept = (told > 0.0) & (values > 0.0)
    if not kept.any():
        return None
    some = [row for row, keep in zip(rows, kept.tolist(), strict=True) if keep]
    return _Pair(title, x_label, y_label, told[kept], values[kept], some)


def _draw(axes: Axes, pair: _Pair) -> None:
    low = 0.8 * min(pair.told.min(), pair.seen.min())
    high = 1.25 * max(pair.told.max(), pair.seen.max())
    axes.plot([low, high], [low, high], color=INK, linewidth=0.9, linestyle=(0, (4, 2)), label="both agree")
    dots(axes, pair.told, pair.seen, 0, label="observation", total=pair.told.size)
    for axis, scale in ((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale)):
        scale("log")
        log_ticks(axis, float(low), float(high))
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_xlabel(pair.x_label)
    axes.set_ylabel(pair.y_label)
    axes.set_title(pair.title, loc="left")
    axes.set_aspect("equal" if np.isfinite(low) else "auto", adjustable="box")
