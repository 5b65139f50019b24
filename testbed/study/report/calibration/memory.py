"""Charts of durations against the memory of a guest: all observations, the fits with their bands, and outliers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from testbed.study.calibration.model import Calibration
from testbed.study.calibration.values import Value
from testbed.study.report.calibration.data import Row, figure_words, groups, spread, values_of
from testbed.study.report.calibration.lines import Line, is_outlier, law_words, lines_of
from testbed.study.report.calibration.panels import (
    MARKS,
    dots,
    is_narrow,
    legend_above,
    memory_axis,
    panels,
    ring,
    sized,
)
from testbed.study.report.page.style import INK, Chart, single_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WILD = 1.5
_DASHES = ("-", (0, (5, 1.5)), (0, (2, 1)), "-.")


@dataclass(frozen=True, slots=True)
class Phase:
    """A duration over memory; `observed` is the name of the value, `name` that of its fit, `law` the fit as text."""

    name: str
    observed: str
    label: str
    rows: Sequence[Row]
    lines: Sequence[Line]
    law: str

    @classmethod
    def of(
        cls, calibration: Calibration, name: str, observed: str, label: str, rows: Sequence[Row],
        condition: Mapping[str, Value],
    ) -> Self:  # fmt: skip
        """Return a phase with its fit under exactly this condition; every row has the memory and the observed value."""
        levels = sorted({int(row.number("concurrent") or 1) for row in rows})
        lines = lines_of(calibration, name, condition, rows, observed)
        return cls(name, observed, label, rows, lines, law_words(calibration, name, condition, levels))

    def is_outlier(self, calibration: Calibration, row: Row) -> bool:
        """Return whether the calibration lists the observation as an outlier."""
        return is_outlier(calibration, f"{self.name}_s", row, row.number(self.observed) or 0.0)


def phase_chart(name: str, title: str, caption: str, phase: Phase, calibration: Calibration) -> Chart:
    """Return a chart of one phase over memory."""

    def draw(figure: Figure) -> None:
        axes = single_axes(figure, "", "seconds")
        over_memory(axes, phase, calibration)
        legend_above(figure, axes, 3)

    alt = f"{phase.label}: median {np.median(values_of(phase.rows, phase.observed)):.3g} s"
    return Chart(name, title, caption, alt, sized(draw), height_in=3.5)


def phase_panels(figure: Figure, phases: Sequence[Phase], calibration: Calibration, *, across: int) -> list[Axes]:
    """Draw phases over memory in panels, `across` per row."""
    cells = panels(figure, len(phases), across=across, height_in=2.9)
    for place, (axes, phase) in enumerate(zip(cells, phases, strict=True)):
        over_memory(axes, phase, calibration)
        axes.set_ylabel("seconds")
        axes.set_title(phase.label, loc="left")
        if place < len(phases) - across and not is_narrow(figure):
            axes.set_xlabel("")
    return cells


def over_memory(axes: Axes, phase: Phase, calibration: Calibration) -> None:
    """Draw all observations over memory, with one mark per number of guests at once, fits, bands and outliers."""
    rows = phase.rows
    by_level = groups(rows, "concurrent")
    sizes = np.unique(values_of(rows, "memory_mib"))
    step_mib = float(np.diff(sizes).min()) if sizes.size > 1 else float(sizes[0])
    width_mib = min(0.5 * step_mib, 0.05 * float(sizes[-1])) / max(len(by_level), 1)
    mark_of: dict[int, int] = {}
    for mark, ((level,), own) in enumerate(by_level.items()):
        mark_of[int(float(level or 1))] = mark
        shift_mib = (mark - 0.5 * (len(by_level) - 1)) * width_mib * 1.3
        x = values_of(own, "memory_mib") + shift_mib + 0.8 * width_mib * spread(len(own))
        y = values_of(own, phase.observed)
        dots(axes, x, y, mark, label=f"{level or 1} at once", total=len(rows))
        far = np.array([phase.is_outlier(calibration, row) for row in own], dtype=bool)
        if far.any():
            named = axes.get_legend_handles_labels()[1]
            ring(axes, x[far], y[far], label="" if "outlier, kept" in named else "outlier, kept")
    top_s = _close_up(axes, phase, calibration)
    for line in phase.lines:
        mark = mark_of.get(line.level, 0)
        color = "0.45" if not line.level else MARKS[mark % len(MARKS)][0]
        axes.plot(line.memory_mib, line.time_s, color=color, linewidth=1.5, zorder=4, linestyle=_DASHES[mark % 4])
        if np.isfinite(line.low_s).all() and np.isfinite(line.high_s).all():
            axes.fill_between(line.memory_mib, line.low_s, line.high_s, color=color, alpha=0.2, linewidth=0, zorder=2)
    memory_axis(axes, float(sizes[-1]))
    axes.set_ylim(min(0.0, float(values_of(rows, phase.observed).min()) * 1.05), top_s)


def _close_up(axes: Axes, phase: Phase, calibration: Calibration) -> float:
    """Return the upper end of the axis of seconds, and label outliers beyond it, which would compress all others."""
    rows, observed = phase.rows, phase.observed
    wild = [row for row in rows if phase.is_outlier(calibration, row)]
    values = values_of(rows, observed)
    tame = values_of([row for row in rows if row not in wild], observed)
    fitted = [float(line.time_s.max()) for line in phase.lines]
    most_s = max([float(tame.max()), *fitted]) if tame.size else values.max()
    if values.max() <= _WILD * most_s:
        return 1.07 * float(values.max())
    top_s = 1.25 * most_s
    for value_s in np.sort(values).tolist():  # extend the axis to values just beyond it, so that they need no label
        top_s = max(top_s, 1.14 * value_s) if value_s <= 1.12 * top_s else top_s
    for (memory_mib,), own in groups(
        [row for row in wild if (row.number(observed) or 0.0) > top_s], "memory_mib"
    ).items():
        beyond = np.sort(values_of(own, observed))
        words = ("" if beyond.size == 1 else f"{beyond.size}, to ") + figure_words(float(beyond[-1]))
        x = float(memory_mib)
        axes.plot([x], [0.975 * top_s], marker="^", color=INK, markersize=6, linestyle="none", zorder=6)
        right = x > 0.75 * float(values_of(rows, "memory_mib").max())
        axes.annotate(
            f"{words} s", (x, 0.975 * top_s), xytext=(-6 if right else 6, 0), textcoords="offset points", va="center",
            ha="right" if right else "left", fontsize=9,
        )  # fmt: skip
    return top_s
