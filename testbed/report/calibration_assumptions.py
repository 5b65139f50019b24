"""What the papers assume against what was measured: first of all their 300 s a rescheduling [RR 5.1]."""

# ruff: noqa: RUF001 - signs of mathematics and dashes, for people to read

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from testbed.calibration.assumptions import PENALTY_S
from testbed.calibration.model import Calibration
from testbed.calibration.tables import assumption_table
from testbed.calibration.trials import Trials
from testbed.report.calibration_costs import reschedulings
from testbed.report.calibration_data import Row, column, count_words, groups, having, listed, middle, rows_of
from testbed.report.calibration_panels import Strip, legend_above, log_axis, sized, strips, strips_height_in
from testbed.report.page_tables import Headline, Table
from testbed.report.style import VERMILION, Absent, Chart

_NAME, _TITLE = "calibration_penalty", "300 s, as the papers assume, and the penalty here"
_MOST_LINES = 14


def figure_assumed(trials: Trials, reason: str) -> Chart | Absent:
    """Return measured penalties on a logarithmic axis that reaches to the 300 s of the papers."""
    named = _named(trials)
    if not named:
        return Absent(_NAME, _TITLE, reason)

    def draw(figure: Figure) -> None:
        figure.set_figheight(strips_height_in(len(named)))
        axes = figure.add_subplot()
        lines = [Strip(label, column(own, name), middle(own, name), mark) for label, mark, name, own in named]
        strips(axes, lines, "seconds of wall time, logarithmic")
        log_axis(axes, [*(line.values for line in lines), np.array([PENALTY_S])], upright=False)
        axes.axvline(PENALTY_S, color=VERMILION, linewidth=2.0, linestyle=(0, (4, 2)), label="assumed: 300 s [RR 5.1]")
        legend_above(figure, axes, 3)

    words = listed([(label, middle(own, name)) for label, _mark, name, own in named], "s")
    caption = (
        "Wall seconds that a preemption and the restore after it took from a job, save + restore + first progress, "
        "without the pause between; for live migrations what the job felt. One dot an observation, with the median and "
        "its 95 % interval over trials; what a job felt that is not above 0 s has no place on this axis. "
        f"Medians: {words}. {count_words([row for *_words, own in named for row in own])}."
    )
    return Chart(_NAME, _TITLE, caption, f"Penalties, where 300 s are assumed: {words}", sized(draw), wide=True)


def _named(trials: Trials) -> list[tuple[str, int, str, list[Row]]]:
    """Return lines of the figure: label, mark, name of what is drawn, observations."""
    grid, _others = reschedulings(trials)
    found: list[tuple[str, int, str, list[Row]]] = []
    kinds = groups(grid, "concurrent", "memory_mib")
    levels = sorted({level for level, _ in kinds}, key=str)
    for (level, memory_mib), own in kinds.items():
        found.append((f"{memory_mib} MiB, {level} at once", levels.index(level), "penalty_s", own))
    if len(found) > _MOST_LINES:  # the smallest and the largest of each number at once say enough here
        ends = {
            (level, end([size for at, size in kinds if at == level], key=float))
            for level in levels
            for end in (min, max)
        }
        found = [one for one, kind in zip(found, kinds, strict=True) if kind in ends]
    parallel = having(rows_of(trials, "mpi-save-restore"), "penalty_s")
    for (memory_mib, tasks), own in groups(parallel, "memory_mib", "tasks").items():
        found.append((f"{tasks} tasks of {memory_mib} MiB", 3, "penalty_s", own))
    live = [row for row in having(rows_of(trials, "live-migration"), "felt_s") if (row.number("felt_s") or 0.0) > 0.0]
    for (memory_mib,), own in groups(
        [row for row in live if row.number("concurrent") in {None, 1.0}], "memory_mib"
    ).items():
        found.append((f"live, {memory_mib} MiB", 4, "felt_s", own))
    return found


def assumptions_table(calibration: Calibration) -> Table:
    """Return the verdict on each assumption of the papers."""
    told = assumption_table(calibration)
    rows = tuple((row[0].replace("_", " "), *row[1:]) for row in told.rows)
    caption = (
        "Judged by all conditions that were measured and their 95 % intervals: held, if all are within 2 % of what is "
        "assumed; within, if all are within 10 %; broken, if one is wholly outside 10 %; undecided, if more trials "
        f"are needed. {len(rows)} assumptions of [RR] (Casanova, Stillwell and Vivien, RR-7659, 2011)."
    )
    return Table("assumptions", "What the papers assume", caption, told.heads, rows, texts=len(told.heads))


def headlines(trials: Trials, calibration: Calibration) -> tuple[Headline, ...]:
    """Return the numbers that the page begins with, as far as they were measured."""
    found = []
    grid, _others = reschedulings(trials)
    kinds = groups([row for row in grid if row.number("concurrent") in {None, 1.0}], "memory_mib")
    if kinds:
        (memory_mib,), own = list(kinds.items())[-1]
        penalty = middle(own, "penalty_s")
        found.append(Headline(f"{penalty.value:.3g}", "s", f"penalty of a guest of {memory_mib} MiB, median"))
        if penalty.value > 0:
            ratio = PENALTY_S / penalty.value
            found.append(Headline(f"{ratio:.3g}", "×", "the 300 s of the papers are that many times as long"))
    for experiment, name, label in (
        ("live-migration", "felt_s", "felt of a live migration, median"),
        ("start", "ready_s", "start to first progress, median"),
        ("bus", "round_trip_s", "round trip of the bus, median"),
    ):
        rows = having(rows_of(trials, experiment), name)
        if rows:
            value = float(np.median(column(rows, name)))
            small = abs(value) < 0.1
            found.append(Headline(f"{value * (1e3 if small else 1.0):.3g}", "ms" if small else "s", label))
    caps = calibration.find("cap_error_median_points")
    if caps:
        longest = max(caps, key=lambda one: float(one.condition.get("window_s", 0.0)))
        label = f"cap error over {float(longest.condition.get('window_s', 0.0)):g} s, median"
        found.append(Headline(f"{longest.value:.2g}", "points", label))
    return tuple(found)
