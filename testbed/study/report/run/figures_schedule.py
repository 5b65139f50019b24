"""The Gantt charts of a page: of a run, of the schedule that it is compared with, and their difference."""

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
    "A row is a node; a bar is a task, as high as the memory that it holds, coloured by its yield (dark 0, yellow "
    "1); starts, saves, restores and live migrations are hatched, saved tasks are thin lines below their node."
)
_DENSE = (
    "A row is a node; colour is the mean yield of its tasks by CPU need (dark 0, yellow 1): there are too many "
    "tasks for single bars."
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
    """Return the schedule with names that leave room for its bars."""
    names = tuple(short(name, _LONGEST_NODE) for name in schedule.node_names)
    return replace(schedule, node_names=names, name=short(schedule.name, _LONGEST_NAME))


def _nothing(schedule: Schedule) -> bool:
    return not schedule.spans or schedule.end_s <= 0.0


def _difference(found: Difference, number: int, count: int) -> Chart:
    shifts = [job.end_shift_s for job in found.jobs if job.end_shift_s is not None]
    ends = (
        f" Ends are shifted by {median(shifts):+,.0f} trace s in the median ({min(shifts):+,.0f} to "
        f"{max(shifts):+,.0f}; positive: later in “{found.first.name}”); n = {len(shifts)} jobs that ended in both."
        if shifts
        else " No job ended in both."
    )
    one, other = found.first.name, found.second.name
    caption = (
        f"Above a node's line what ran there only in “{one}”, below it what ran only in “{other}”, over wall seconds. "
        f"Of all task seconds of either, {found.agreement_frac:.0%} were at the same time on the same node in both."
        f"{ends}"
    )
    name = "difference" if count == 1 else f"difference-{number}"
    return Chart(
        name, f"Difference: {one} − {other}", caption,
        f"Difference of two schedules: {found.agreement_frac:.0%} of task seconds agree",
        lambda figure: draw_difference(figure, found), height_in=difference_height_in(found), wide=True,
    )  # fmt: skip


def figures_schedule(schedule: Schedule, others: Sequence[Schedule] = ()) -> tuple[Chart | Absent, ...]:
    """Return the Gantt chart of a run, with those that it is held against below it, and their differences.

    Raises `UserError` if another schedule is not of as many nodes and of the same time scale.
    """
    schedule, others = _named(schedule), [_named(other) for other in others]
    differences = [difference(schedule, other) for other in others]
    title = "Gantt chart" if not others else "Gantt charts"
    if _nothing(schedule):
        return (Absent("gantt", title, "No task was started while this run lasted."),)
    charts = [_difference(found, number, len(others)) for number, found in enumerate(differences, 1)]
    return (_gantt("gantt", title, [schedule, *others]), *charts)


def figures_schedules(schedules: Sequence[Schedule]) -> tuple[Chart | Absent, ...]:
    """Return the Gantt charts of several runs below each other, some to a figure; of one time scale in each."""
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
