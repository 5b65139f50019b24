"""Figure and table of response times of parallel jobs over repeats, for comparisons with policies of shares."""

# ruff: noqa: RUF001 - signs of mathematics and dashes, for people to read

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from matplotlib.figure import Figure

from testbed.measure.robust import Interval, t_interval
from testbed.study.report.page.style import CYCLE, FAINT, Chart, legend_outside, short, single_axes
from testbed.study.report.page.table import Table
from testbed.study.report.run.comparison import Group
from testbed.study.report.run.run_data import has_shares

_MOST_JOBS = 12
_MARKS = ("o", "s", "^", "D", "v", "P")
_WHAT = (
    "Time from submission to end of parallel jobs that are done, in trace seconds: mean over runs of the same "
    "scenario, policy and seed, with its 95 % t-interval for at least two runs."
)


@dataclass(frozen=True, slots=True)
class Response:
    """The response times of one job in the runs of one group, in trace seconds; `waits_s` are the times to its start.

    `mean` is None for fewer than two runs.
    """

    job: str
    tasks: int
    policy: str
    values_s: tuple[float, ...]
    waits_s: tuple[float, ...]
    mean: Interval | None


def response_times(groups: Sequence[Group]) -> list[Response]:
    """Return the response times by job, then by policy; empty if jobs compete by shares in no group."""
    workloads = list(dict.fromkeys(group.workload for group in groups if has_shares(group.policy)))
    found = []
    for workload in workloads:
        own = [group for group in groups if group.workload == workload]
        run = own[0].runs[0]
        where = f" ({run.scenario}, seed {run.seed})" if len(workloads) > 1 else ""
        jobs = {job.job_id: job.tasks for group in own for each in group.runs for job in each.jobs if job.tasks > 1}
        for job_id, tasks in sorted(jobs.items())[:_MOST_JOBS]:
            found += [
                response
                for group in own
                if (response := _response(group, job_id, tasks, f"{job_id}{where}")) is not None
            ]
    return found


def _response(group: Group, job_id: int, tasks: int, name: str) -> Response | None:
    rows = [job for run in group.runs for job in run.jobs if job.job_id == job_id and job.state == "done"]
    times_s = [
        (job.end_time_s - job.submit_time_s, job.start_time_s - job.submit_time_s)
        for job in rows
        if job.end_time_s is not None and job.start_time_s is not None
    ]
    if not times_s:
        return None
    values_s, waits_s = zip(*times_s, strict=True)
    return Response(name, tasks, group.policy, values_s, waits_s, t_interval(values_s))


def response_table(found: Sequence[Response]) -> Table | None:
    """Return a table with one row per job and policy, None without response times."""
    if not found:
        return None
    rows = tuple(
        (
            one.job, one.policy, str(one.tasks), str(len(one.values_s)), f"{fmean(one.values_s):,.1f}",
            "–" if one.mean is None else f"{one.mean.low:,.1f} to {one.mean.high:,.1f}",
            f"{min(one.values_s):,.1f}", f"{max(one.values_s):,.1f}", f"{fmean(one.waits_s):,.1f}",
        )
        for one in found
    )  # fmt: skip
    columns = ("job", "policy", "tasks", "n", "mean s", "95 % interval", "minimum", "maximum", "mean wait s")
    return Table("responses-table", "Response times of parallel jobs", _WHAT, columns, rows, texts=2)


def figure_responses(found: Sequence[Response]) -> Chart | None:
    """Return a chart of the means with their intervals, and of single runs; None without response times."""
    if not found:
        return None
    policies = list(dict.fromkeys(one.policy for one in found))
    jobs = list(dict.fromkeys(one.job for one in found))

    def draw(figure: Figure) -> None:
        axes = single_axes(figure, "response time (trace s)", "job")
        step = 0.8 / len(policies)
        for number, policy in enumerate(policies):
            own = [one for one in found if one.policy == policy]
            rows = np.array([jobs.index(one.job) + (number - (len(policies) - 1) / 2) * step for one in own])
            color = CYCLE[number % len(CYCLE)]
            for one, row in zip(own, rows, strict=True):
                axes.plot(one.values_s, [row] * len(one.values_s), "|", color=color, alpha=0.5, markersize=7)
            means = np.array([fmean(one.values_s) for one in own])
            halves = [0.0 if one.mean is None else one.mean.high - one.mean.value for one in own]
            axes.errorbar(
                means, rows, xerr=halves, fmt=_MARKS[number % len(_MARKS)], color=color, capsize=3, markersize=5,
                linewidth=1.4, label=short(policy, 40),
            )  # fmt: skip
        for place in range(1, len(jobs)):
            axes.axhline(place - 0.5, color=FAINT, linewidth=0.6)
        axes.set_yticks(range(len(jobs)), jobs)
        axes.set_ylim(len(jobs) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.set_xlim(left=0.0)
        legend_outside(figure, 3)

    words = "; ".join(f"job {one.job} under {one.policy}: {fmean(one.values_s):.1f} s" for one in found[:8])
    counts = ", ".join(dict.fromkeys(f"{one.policy} {len(one.values_s)}" for one in found))
    caption = f"{_WHAT} Small strokes are single runs; n = {counts}."
    height_in = 1.2 + max(1.6, 0.24 * len(jobs) * len(policies))
    return Chart("responses", "Response times of parallel jobs", caption, f"Response times — {words}", draw, height_in)
