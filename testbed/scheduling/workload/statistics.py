"""Statistics of a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from statistics import median

from testbed.errors import UserError
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.load import cpu_load, offered_load
from testbed.scheduling.workload.segments import weeks


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """Figures of a trace; `*_load`, `jobs_beyond_cluster` and `nodes` are None when no number of nodes was given.

    `jobs_beyond_cluster` counts the jobs whose tasks do not fit into the memory of all nodes at the same time, so that
    they can never run. The loads are also None when all jobs are submitted at one instant.
    """

    jobs: int
    tasks: int
    first_submit_time_s: float
    span_s: float
    weeks: int
    inter_arrival_mean_s: float
    tasks_mean: float
    tasks_median: float
    tasks_max: int
    one_task_frac: float
    power_of_two_frac: float
    run_time_mean_s: float
    run_time_median_s: float
    run_time_max_s: float
    cpu_need_mean_frac: float
    mem_req_mean_frac: float
    mem_req_max_frac: float
    jobs_by_class: dict[str, int]
    nodes: int | None
    offered_load: float | None
    cpu_load: float | None
    jobs_beyond_cluster: int | None


def describe(jobs: Sequence[Job], nodes: int | None = None) -> TraceStatistics:
    """Return the figures of a trace of one job or more, sorted by submission; means and shares are over jobs.

    Raises UserError when `nodes` is below 1 or there is no job.
    """
    if not jobs:
        raise UserError("a trace without jobs has no statistics")
    if nodes is not None and nodes < 1:
        raise UserError(f"{nodes} nodes: expected 1 or more")
    count = len(jobs)
    tasks = [job.tasks for job in jobs]
    run_times_s = [job.run_time_s for job in jobs]
    span_s = jobs[-1].submit_time_s - jobs[0].submit_time_s
    return TraceStatistics(
        jobs=count,
        tasks=sum(tasks),
        first_submit_time_s=jobs[0].submit_time_s,
        span_s=span_s,
        weeks=len(weeks(jobs)),
        inter_arrival_mean_s=span_s / max(count - 1, 1),
        tasks_mean=sum(tasks) / count,
        tasks_median=float(median(tasks)),
        tasks_max=max(tasks),
        one_task_frac=sum(size == 1 for size in tasks) / count,
        power_of_two_frac=sum(size.bit_count() == 1 for size in tasks) / count,
        run_time_mean_s=fsum(run_times_s) / count,
        run_time_median_s=float(median(run_times_s)),
        run_time_max_s=max(run_times_s),
        cpu_need_mean_frac=fsum(job.cpu_need_frac for job in jobs) / count,
        mem_req_mean_frac=fsum(job.mem_req_frac for job in jobs) / count,
        mem_req_max_frac=max(job.mem_req_frac for job in jobs),
        jobs_by_class=dict(sorted(Counter(job.job_class for job in jobs if job.job_class is not None).items())),
        nodes=nodes,
        offered_load=offered_load(jobs, nodes) if nodes and span_s > 0 else None,
        cpu_load=cpu_load(jobs, nodes) if nodes and span_s > 0 else None,
        jobs_beyond_cluster=sum(_is_beyond(job, nodes) for job in jobs) if nodes else None,
    )


def _is_beyond(job: Job, nodes: int) -> bool:
    tasks_a_node = int(1 / job.mem_req_frac + 1e-9)  # 1e-9 for rounding: three tasks of a third fit
    return job.tasks > nodes * tasks_a_node
