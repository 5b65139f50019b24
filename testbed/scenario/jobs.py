"""The jobs of a scenario, from its trace or its model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from testbed.errors import UserError
from testbed.scenario.schema import Scenario, SegmentTable
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.load import scale_load
from testbed.scheduling.workload.segments import JobRange, Segment, Week, Window, cut
from testbed.scheduling.workload.synthetic import synthetic_trace
from testbed.scheduling.workload.trace import load_trace


def load_jobs(scenario: Scenario, path: Path, tell: Callable[[str], None] | None = None) -> list[Job]:
    """Return the scenario's jobs, submitted from trace second 0 on; `path` is the scenario's file, for messages.

    If the scenario's segment leaves out jobs of the trace, `tell` gets a line about it.
    """
    workload = scenario.workload
    if workload.trace is not None:
        jobs = load_trace(workload.trace, workload.reading)
    elif workload.lublin is not None:
        model = workload.lublin
        jobs = synthetic_trace(model.nodes, model.jobs, model.seed, model.mode)
    else:
        raise UserError(f"{path}: workload: expected trace (a file, or --trace FILE) or a [workload.lublin] table")
    segment = _segment(workload.segment, len(jobs))
    chosen = list(jobs) if segment is None else cut(jobs, segment)
    if tell is not None and len(chosen) < len(jobs):
        tell(f"{workload.trace or path}: {len(chosen)} of {len(jobs)} jobs, by workload.segment of {path}: {segment}")
    first_s = 0.0 if isinstance(segment, Window | Week) else chosen[0].submit_time_s
    rebased = [replace(job, submit_time_s=job.submit_time_s - first_s) for job in chosen]
    load = None if workload.lublin is None or workload.trace is not None else workload.lublin.load
    return rebased if load is None else scale_load(rebased, len(scenario.nodes), load)


def _segment(table: SegmentTable, jobs: int) -> Segment | None:
    if table.week is not None:
        return Week(table.week)
    if table.start_s is not None and table.duration_s is not None:
        return Window(table.start_s, table.duration_s)
    if table.first_job is None and table.jobs is None:
        return None
    first = table.first_job or 0
    return JobRange(first, table.jobs or jobs - first)
