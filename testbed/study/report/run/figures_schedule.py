"""The Gantt charts of a page: of a run, of schedules for comparison, and of their differences."""

# ruff: noqa: RUF001 - signs of mathematics and dashes, for people to read

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from testbed.study.report.page.style import Absent, Chart, short
from testbed.study.report.run.difference import Difference, difference
from testbed.study.report.run.gantt import draw_gantt, height_in, is_dense
from testbed.study.report.run.gantt_difference import difference_height_in, draw_difference
from testbed.study.report.run.schedule import Schedule

_MOST_TOGETHER = 6
_LONGEST_NODE, _LONGEST_NAME = 18, 60
_BARS = (
    "Each row is a node. Each bar is a task; its height is the memory that it holds, and its colour is its yield (dark "
    "0, yellow 1). Starts, saves, restores and live migrations are hatched; saved tasks are thin lines below their "
    "node."
)
_DENSE = (
    "Each row is a node. Its colour is the mean yield of its tasks, weighted by CPU need (dark 0, yellow 1), because "
    "there are too many tasks for single bars."
)


def _gantt(name: str, title: str, schedules: Sequence[Schedule]) -> Chart:
    jobs = " + ".join(str(len(schedule.jobs)) for schedule in schedules)
    nodes = schedules[0].nodes
    words = _DENSE if any(is_dense(schedule) for schedule in schedules) else _BARS
    spans = sum(len(schedule.spans) for schedule in schedules)
    above = "" if schedules[0].time_scale == 1.0 else ", trace time above"
    caption = f"{words} Time in wall seconds{above}; n = {jobs} jobs on {nodes} nodes, {spans:,} spans."
    return Chart(
        name, title, caption, f"Gantt chart of {jobs} jobs on {nodes} nodes",
        lambda figure: draw_gantt(figure, schedules), height_in=height_in(schedules), wide=True,
    )  # fmt: skip


def _named(schedule: Schedule) -> Schedule:
    """Return the schedule with shortened names, which leave room for its bars."""
    names = tuple(short(name, _LONGEST_NODE) for name in schedule.node_names)
    return replace(schedule, node_names=names, name=short(schedule.name, _LONGEST_NAME))


def _nothing(schedule: Schedule) -> bool:
    return not schedule.spans or schedule.end_s <= 0.0


def _difference(found: Difference, number: int, count: int) -> Chart:
    shifts = [job.end_shift_s for job in found.jobs if job.end_shift_s is not None]
    ends = (
        f" Shift of the ends of jobs: median {median(shifts):+,.0f} trace s ({min(shifts):+,.0f} to "
        f"{max(shifts):+,.0f}; positive: later in “{found.first.name}”); n = {len(shifts)} jobs that ended in both."
        if shifts
        else " No job ended in both."
    )
    one, other = found.first.name, found.second.name
    caption = (
        f"Above the line of a node: tasks that ran there only in “{one}”; below it: tasks that ran there only in "
        f"“{other}”; over wall seconds. Of all task seconds of either, {found.agreement_frac:.0%} were at the same "
        f"time on the same node in both.{ends}"
    )
    name = "difference" if count == 1 else f"difference-{number}"
    return Chart(
        name, f"Difference: {one} − {other}", caption,
        f"Difference of two schedules: {found.agreement_frac:.0%} of task seconds agree",
        lambda figure: draw_difference(figure, found), height_in=difference_height_in(found), wide=True,
    )  # fmt: skip


def figures_schedule(schedule: Schedule, others: Sequence[Schedule] = ()) -> tuple[Chart | Absent, ...]:
    """Return the Gantt chart of a run with the schedules for comparison below it, and charts of their differences.

    Raises `UserError` if a schedule has another number of nodes or another time scale.
    """
    schedule, others = _named(schedule), [_named(other) for other in others]
    differences = [difference(schedule, other) for other in others]
    title = "Gantt chart" if not others else "Gantt charts"
    if _nothing(schedule):
        return (Absent("gantt", title, "No task was started while this run lasted."),)
    charts = [_difference(found, number, len(others)) for number, found in enumerate(differences, 1)]
    return (_gantt("gantt", title, [schedule, *others]), *charts)


def figures_schedules(schedules: Sequence[Schedule]) -> tuple[Chart | Absent, ...]:
    """Return the Gantt charts of several runs, several per figure below each other if their time scales are equal."""
    drawn = [_named(schedule) for schedule in schedules if not _nothing(schedule)]
    if not drawn:
        return (Absent("gantt", "Gantt charts", "No task was started in any of these runs."),)
    scales = dict.fromkeys(schedule.time_scale for schedule in drawn)
    parts = []
    for scale in scales:
        own = [schedule for schedule in drawn if schedule.time_scale == scale]
        parts += [own[first : first + _MOST_TOGETHER] for first in range(0, len(own), _MOST_TOGETHER)]
    return tuple(
        _gantt(f"gantt-{number}" if len(parts) > 1 else "gantt", "Gantt charts", part)
        for number, part in enumerate(parts, 1)
    )
