"""The time to suspend a guest and the time to resume it, against its memory, as in [XGE] Figure 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from testbed.study.calibration.values import Value
from testbed.study.report.calibration.data import (
    Measured,
    Row,
    count_words,
    groups,
    having,
    interval_words,
    middle,
    spread,
    values_of,
)
from testbed.study.report.calibration.lines import Line, lines_of
from testbed.study.report.calibration.panels import MARKS, dots, interval_mark, legend_above, memory_axis, sized
from testbed.study.report.page.style import Absent, Chart, single_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAME, _TITLE = "calibration_suspend", "Suspend and resume against memory"
_PAPER = "[XGE] (Fallenbeck et al., 2007) took 150 s to suspend 7 GB, and 129 s to resume it, with Xen on a SATA disk"
_APART = 0.012  # horizontal offset of the marks of both halves, as a fraction of the largest memory


@dataclass(frozen=True, slots=True)
class _Half:
    """One half of a rescheduling: the rows of single guests, the name of their duration, and the lines of the fit."""

    label: str
    seconds_name: str
    rows: Sequence[Row]
    lines: Sequence[Line]

    def words(self) -> str:
        """Return the medians with their intervals, by memory."""
        sizes = groups(self.rows, "memory_mib")
        found = [f"{mib} MiB: {interval_words(middle(own, self.seconds_name), 's')}" for (mib,), own in sizes.items()]
        return f"{self.label.capitalize()}: {'; '.join(found)}"


def figure_suspend(measured: Measured, rows: Sequence[Row]) -> Chart | Absent:
    """Return the chart of guests that were saved and restored alone; `rows` are the rows of the main grid."""
    whole = [_with_resume(row) for row in having(rows, "memory_mib", "save_s", "restore_s", "first_progress_s")]
    if not any(_alone(row) for row in whole):
        return measured.absent(_NAME, _TITLE, "No guest was saved alone." if whole else "")
    where: dict[str, Value] = {name: whole[0].values.get(name, usual) for name, usual in _USUAL.items()}
    halves = [
        _half(measured, "suspend", "save", "save_s", whole, {"storage": where["storage"]}),
        _half(measured, "resume", "resume", "resume_s", whole, where),
    ]
    words = ". ".join(half.words() for half in halves)
    caption = (
        "Suspend is the time from the save command until the image is written. Resume is the time from the restore "
        "command to the first progress. Guests were alone on their node and had filled their memory; "
        f"images on {where['storage']}, page cache {where['cache']}. Wall seconds; one dot per guest, with the median "
        "and its 95 % interval over trials, and the fit of the calibration. "
        f"{words}. {count_words(halves[0].rows)}. {_PAPER}."
    )
    return Chart(_NAME, _TITLE, caption, f"{_TITLE}: {words}", sized(lambda figure: _draw(figure, halves)), wide=True)


_USUAL: Mapping[str, Value] = {"storage": "disk", "cache": "warm"}


def _with_resume(row: Row) -> Row:
    seconds = (row.number("restore_s") or 0.0) + (row.number("first_progress_s") or 0.0)
    return replace(row, values={**row.values, "resume_s": seconds})


def _alone(row: Row) -> bool:
    return row.number("concurrent") in {None, 1.0}


def _half(
    measured: Measured, label: str, fit: str, seconds_name: str, rows: Sequence[Row], condition: Mapping[str, Value]
) -> _Half:
    """Return one half: the fit uses all numbers of guests at once, and its lines are for a single guest."""
    lines = lines_of(measured.calibration, fit, condition, rows, seconds_name)
    alone = [line for line in lines if line.level in {0, 1}]
    return _Half(label, seconds_name, [row for row in rows if _alone(row)], alone)


def _draw(figure: Figure, halves: Sequence[_Half]) -> None:
    axes = single_axes(figure, "", "seconds")
    most_mib = float(max(values_of(half.rows, "memory_mib").max() for half in halves))
    for place, half in enumerate(halves):
        _draw_half(axes, half, place, (place - 0.5) * 2.0 * _APART * most_mib, most_mib)
    memory_axis(axes, most_mib)
    axes.set_ylim(bottom=0.0)
    legend_above(figure, axes, 3)


def _draw_half(axes: Axes, half: _Half, mark: int, shift_mib: float, most_mib: float) -> None:
    x = values_of(half.rows, "memory_mib") + shift_mib + 0.8 * _APART * most_mib * spread(len(half.rows))
    dots(axes, x, values_of(half.rows, half.seconds_name), mark, label=half.label)
    color = MARKS[mark][0]
    for line in half.lines:
        axes.plot(line.memory_mib, line.time_s, color=color, linewidth=1.5, zorder=4)
        axes.fill_between(line.memory_mib, line.low_s, line.high_s, color=color, alpha=0.2, linewidth=0, zorder=2)
    for number, ((mib,), own) in enumerate(groups(half.rows, "memory_mib").items()):
        found = middle(own, half.seconds_name)
        label = "median and its 95 % interval" if not (mark or number) else ""
        interval_mark(axes, float(mib) + shift_mib, found.value, found, upright=True, label=label)
