"""Caps: how much CPU guests used against what they were given, over windows, and how soon a change was felt."""

# ruff: noqa: RUF001 - signs of mathematics and dashes, for people to read

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from testbed.calibration.trials import Trials
from testbed.measure.robust import Interval
from testbed.report.calibration_data import (
    Row,
    column,
    count_words,
    groups,
    having,
    interval_words,
    middle,
    percent,
    rows_of,
    spread,
)
from testbed.report.calibration_panels import (
    MARKS,
    Strip,
    dots,
    interval_mark,
    legend_above,
    panels,
    sized,
    strips,
    strips_height_in,
)
from testbed.report.style import INK, Absent, Chart

_POINTS = "error_points"
_P95, _WORST = "p95_error_frac", "worst_error_frac"


def _errors(trials: Trials) -> list[Row]:
    """Return windows with their error in percentage points of the guest's CPUs, and their length in two digits."""
    found = []
    for row in having(rows_of(trials, "cap-accuracy"), "window_s", "requested_cores", "used_cores"):
        vcpus = row.number("vcpus") or 1.0
        asked, used = row.number("requested_cores") or 0.0, row.number("used_cores") or 0.0
        more = {
            _POINTS: 100.0 * (used - asked) / vcpus,
            "asked_percent": 100.0 * asked / vcpus,
            "nominal_s": float(f"{row.number('window_s'):.2g}"),
        }
        found.append(Row(row.trial, {**row.values, **more}))
    return found


def figure_cap_accuracy(trials: Trials, reason: str) -> Chart | Absent:
    """Return used less requested CPU against the request, a panel a window length."""
    name, title = "calibration_caps", "Caps: used less requested, by window"
    rows = _errors(trials)
    if not rows:
        return Absent(name, title, reason)
    windows = groups(rows, "nominal_s")

    def draw(figure: Figure) -> None:
        cells = panels(figure, len(windows), across=3, height_in=2.9)
        for axes, ((window_s,), own) in zip(cells, windows.items(), strict=True):
            axes.axhline(0.0, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
            by_size = groups(own, "vcpus")
            _single_windows(axes, own, len(by_size))
            for mark, ((vcpus,), some) in enumerate(by_size.items()):
                shift = (mark - 0.5 * (len(by_size) - 1)) * 4.0
                x = column(some, "asked_percent") + shift + 2.4 * spread(len(some))
                dots(axes, x, column(some, _POINTS), mark, label=_cpus(vcpus), total=len(own))
                for (asked,), same in groups(some, "asked_percent").items():
                    named = axes.get_legend_handles_labels()[1]
                    label = "median and its 95 % interval"
                    interval_mark(
                        axes, float(asked) + shift, middle(same, _POINTS).value, middle(same, _POINTS), upright=True,
                        label="" if label in named else label,
                    )  # fmt: skip
            axes.set_xlim(0, 100)
            axes.set_xlabel("requested (% of the guest's CPUs)")
            axes.set_ylabel("used − requested (points)")
            axes.set_title(f"windows of {float(window_s):g} s", loc="left")
            edge = 1.1 * max(float(np.abs(column(own, _POINTS)).max()), _single(own, _P95), 0.1)
            axes.set_ylim(-edge, edge)
        legend_above(figure, cells[0], 4)

    said = []
    for (window_s,), own in windows.items():
        size = [Row(row.trial, {"size": abs(row.number(_POINTS) or 0.0)}) for row in own]
        words = f"{float(window_s):g} s: median |error| {interval_words(middle(size, 'size'), '')}"
        worst = _single(own, _WORST)
        said.append(f"{words}, worst single window {worst:.3g}" if worst > 0.0 else words)
    caption = (
        "CPU time used over a window less the cap times the window, in percentage points of the guest's CPUs, by the "
        "finest counter that the driver has. One dot a trial, the median of its windows of that length; pale bars: "
        "95 % of single windows are within, by the median trial. Each panel has its own scale. Error in points: "
        f"{'; '.join(said)}. {count_words(rows)}."
    )
    return Chart(name, title, caption, f"Cap errors in points: {'; '.join(said)}", sized(draw), wide=True)


def _single(rows: list[Row], name: str) -> float:
    """Return the greatest of errors of single windows that trials tell, in points; 0 where they do not."""
    return 100.0 * max((row.number(name) or 0.0 for row in rows), default=0.0)


def _single_windows(axes: Axes, rows: list[Row], sizes: int) -> None:
    """Draw the range that 95 % of single windows are in."""
    for mark, own in enumerate(groups(having(rows, _P95), "vcpus").values()):
        for (asked,), same in groups(own, "asked_percent").items():
            within = 100.0 * middle(same, _P95).value
            axes.bar(
                float(asked) + (mark - 0.5 * (sizes - 1)) * 4.0, 2.0 * within, bottom=-within, width=3.4, zorder=1,
                color=MARKS[mark % len(MARKS)][0], alpha=0.22, linewidth=0,
            )  # fmt: skip


def figure_cap_response(trials: Trials, reason: str) -> Chart | Absent:
    """Return how long after a command the new cap was felt, by the change."""
    name, title = "calibration_response", "Caps: how soon a change is felt"
    rows = having(rows_of(trials, "cap-response"), "response_s")
    if not rows:
        return Absent(name, title, reason)
    several = len({row.at("vcpus") for row in rows}) > 1
    named = [
        (f"{percent(a)} → {percent(b)}" + (f", {_cpus(vcpus)}" if several else ""), own)
        for (a, b, vcpus), own in groups(rows, "from_frac", "to_frac", "vcpus").items()
    ]

    def draw(figure: Figure) -> None:
        figure.set_figheight(strips_height_in(len(named)))
        axes = figure.add_subplot()
        lines = [
            Strip(label, 1e3 * column(own, "response_s"), _thousandfold(middle(own, "response_s")))
            for label, own in named
        ]
        strips(axes, lines, "from the command to the change in use (ms)")
        legend_above(figure, axes, 1)

    commands = having(rows, "command_s")
    command = (
        f" The command itself takes {interval_words(_thousandfold(middle(commands, 'command_s')), 'ms')}."
        if commands
        else ""
    )
    caption = (
        "Milliseconds until CPU use has gone to the new cap, as shares of the guest's CPUs, one dot a change, with the "
        "median and its 95 % interval over trials; no shorter than one sample of the watch can be told apart."
        f"{command} {count_words(rows)}.{_lost(rows)}"
    )
    middle_ms = 1e3 * float(np.median(column(rows, "response_s")))
    return Chart(name, title, caption, f"Responses to a new cap: median {middle_ms:.3g} ms", sized(draw), height_in=3.2)


def _lost(rows: list[Row]) -> str:
    """Say how many changes were never seen to be followed, so that those which were do not stand for all."""
    changes = {row.trial: row.number("changes") for row in rows}
    done = sum(int(count) for count in changes.values() if count is not None)
    lost = done - len(rows)
    return f" Of {done} changes {lost} were not seen to be followed." if done and lost > 0 else ""


def _cpus(vcpus: object) -> str:
    return f"{vcpus} vCPU" + ("" if vcpus == 1 else "s")


def _thousandfold(found: Interval) -> Interval:
    return Interval(1e3 * found.value, 1e3 * found.low, 1e3 * found.high)
