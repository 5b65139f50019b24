"""The figure of the nodes' utilisation against the jobs' demand over time [RR Figure 2]."""

# ruff: noqa: RUF001 - signs of mathematics and dashes, for people to read

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from testbed.scheduling.metrics import (
    capped_demand_cpu_s,
    normalised_underutilisation,
    underutilisation_of_integrals,
    work_cpu_s,
)
from testbed.study.report.page.style import BLUE, INK, VERMILION, Absent, Chart, legend_outside, single_axes
from testbed.study.report.run.facts import JobRow, RunFacts
from testbed.study.report.run.schedule import RUNS, Schedule, Span

Floats = NDArray[np.float64]
_NAME, _TITLE = "utilisation", "Utilisation against demand"
_MOST_STEPS = 1500  # more than the figure has pixels


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Step functions of trace time: values (K,) in nodes between `times_s` (K + 1,)."""

    times_s: Floats
    demand_cpu: Floats  # not limited to the number of nodes
    useful_cpu: Floats


def _steps(begins: Floats, ends: Floats, heights: Floats, times: Floats) -> Floats:
    """Return the sum of boxes between consecutive `times`, which include all edges: (times - 1,)."""
    change = np.zeros(times.size)
    np.add.at(change, np.searchsorted(times, begins), heights)
    np.add.at(change, np.searchsorted(times, ends), -heights)
    return np.asarray(np.maximum(np.cumsum(change)[:-1], 0.0), dtype=np.float64)


def utilisation(facts: RunFacts, schedule: Schedule) -> Utilisation | None:
    """Return demand and useful CPU of a run, None if no job was submitted in it.

    Demand is the sum of tasks * CPU need over jobs between submission and end, or until the last known moment. Useful
    CPU is the sum of yield * CPU need over tasks that run or migrate live, by the states in the journal.
    """
    last_s = schedule.to_trace_s(schedule.end_s)
    submitted = [job for job in facts.jobs if job.state != "coming" and job.submit_time_s < last_s]
    if not submitted:
        return None
    begins = np.array([job.submit_time_s for job in submitted])
    ends = np.array([last_s if job.end_time_s is None else job.end_time_s for job in submitted])
    ends = np.maximum(begins, ends)
    running = [
        (schedule.to_trace_s(span.begin_s), schedule.to_trace_s(span.end_s), span.yield_frac * _need_frac(span, job))
        for span in schedule.spans
        if span.kind in RUNS and span.end_s is not None and (job := facts.job_by_id.get(span.job)) is not None
    ]
    spans = np.array(running, dtype=np.float64).reshape(-1, 3)
    times = np.unique(np.concatenate((begins, ends, spans[:, 0], spans[:, 1])))
    if times.size < 2:
        return None
    needs = np.array([job.need_cpu for job in submitted])
    return Utilisation(times, _steps(begins, ends, needs, times), _steps(spans[:, 0], spans[:, 1], spans[:, 2], times))


def _need_frac(span: Span, job: JobRow) -> float:
    """Return the CPU need to which the yield of a span refers: an estimated one, or the declared one of its job."""
    return job.cpu_need_frac if math.isnan(span.cpu_need_frac) else span.cpu_need_frac


def _coarse(times: Floats, values: Iterable[Floats]) -> tuple[Floats, list[Floats]]:
    """Return step functions as means over at most `_MOST_STEPS` equal steps."""
    if times.size <= _MOST_STEPS:
        return times, list(values)
    edges = np.linspace(times[0], times[-1], _MOST_STEPS + 1)
    coarse = []
    for steps in values:
        integral = np.concatenate(([0.0], np.cumsum(steps * np.diff(times))))
        coarse.append(np.asarray(np.diff(np.interp(edges, times, integral)) / np.diff(edges), dtype=np.float64))
    return edges, coarse


def figure_utilisation(facts: RunFacts, schedule: Schedule) -> Chart | Absent:
    """Return a chart of demand and useful CPU over trace time, with the normalised underutilisation in its caption."""
    found = utilisation(facts, schedule)
    nodes = max(len(facts.node_names), schedule.nodes)
    if found is None or nodes == 0:
        return Absent(_NAME, _TITLE, "No job was submitted while this run lasted.")
    capped = np.minimum(found.demand_cpu, nodes)
    times_s, (demand, useful) = _coarse(found.times_s, (capped, np.minimum(found.useful_cpu, nodes)))
    hours = times_s / 3600.0

    def draw(figure: Figure) -> None:
        axes = single_axes(figure, "trace time (h)", "CPU (nodes)")
        low, high = np.minimum(demand, useful), demand
        axes.fill_between(
            hours, np.append(low, low[-1]), np.append(high, high[-1]), step="post", facecolor=VERMILION, alpha=0.35,
            edgecolor="none", linewidth=0, label="unmet demand",
        )  # fmt: skip
        axes.stairs(useful, hours, color=BLUE, linewidth=1.2, label="useful CPU of tasks that progress")
        axes.stairs(demand, hours, color=INK, linewidth=1.0, linestyle=(0, (4, 2)), label="demand, at most all nodes")
        axes.axhline(nodes, color=INK, linewidth=0.5, linestyle=":")
        axes.set_ylim(0.0, nodes * 1.04)
        axes.set_xlim(hours[0], hours[-1])
        legend_outside(figure, 3)

    caption = (
        f"CPU demand of submitted jobs that have not ended, limited to the {nodes} nodes (dashed), and useful CPU, "
        "which is the sum of yield × CPU need over tasks that progress (solid; not during a rescheduling penalty, a "
        f"start or a wait). In nodes, over trace hours; n = {sum(job.state != 'coming' for job in facts.jobs)} jobs. "
        + _words(facts, found, nodes)
    )
    alt = f"Step lines of CPU demand and useful CPU in nodes over {hours[-1] - hours[0]:.2f} trace hours"
    return Chart(_NAME, _TITLE, caption, alt, draw, height_in=3.0, wide=True)


def _words(facts: RunFacts, found: Utilisation, nodes: int) -> str:
    """Return a sentence on the normalised underutilisation, by yields and by measured work."""
    done = [job for job in facts.jobs if job.state == "done" and job.run_time_s and job.end_time_s is not None]
    if len(done) != len(facts.jobs) or not facts.complete:
        return "Normalised underutilisation is not stated, because not every job of this run is done."
    columns = [(job.tasks, job.cpu_need_frac, job.run_time_s or 0.0, job.virtual_time_s or 0.0) for job in done]
    tasks, need, run_s, virtual_s = np.array(columns).T
    work = work_cpu_s(tasks, need, run_s)
    drawn = normalised_underutilisation(found.times_s, found.demand_cpu, found.useful_cpu, nodes, work)
    submit_s = [job.submit_time_s for job in done]
    end_s = [job.end_time_s or 0.0 for job in done]
    demand_cpu_s = capped_demand_cpu_s(submit_s, end_s, tasks * need, nodes)
    measured = underutilisation_of_integrals(demand_cpu_s, work_cpu_s(tasks, need, virtual_s), work)
    below = (
        " Below zero: programs did more work than yield × dedicated rate, which programs that wait for messages can do."
        if measured < 0
        else ""
    )
    return (
        f"Normalised underutilisation (shaded area over the work of all jobs): {drawn:.3f} by the yields that were "
        f"set, {measured:.3f} by the measured work of the jobs' programs [RR 6.4.1].{below}"
    )
