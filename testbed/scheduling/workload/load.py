"""Offered load of a trace, and traces of the same jobs with another load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from testbed.errors import UserError
from testbed.scheduling.workload.jobs import Job


def offered_load(jobs: Sequence[Job], nodes: int) -> float:
    """Return the node time that the jobs request, as a fraction of that which `nodes` offer while jobs are submitted.

    sum(tasks * run time) / (nodes * (last - first submission)), with one node per task: the load of Lublin and
    Feitelson's model, which [RR 5.3.2] scales. `jobs` are sorted by submission.
    Raises UserError when all jobs are submitted at one instant, or `nodes` is below 1.
    """
    return math.fsum(job.tasks * job.run_time_s for job in jobs) / _offered_node_s(jobs, nodes)


def cpu_load(jobs: Sequence[Job], nodes: int) -> float:
    """Return the load of the CPU that tasks need: as `offered_load`, with each task weighted by its CPU need.

    If tasks share nodes, this is the load that a cluster must process; it is never above the offered load.
    Errors as `offered_load`.
    """
    work = math.fsum(job.tasks * job.cpu_need_frac * job.run_time_s for job in jobs)
    return work / _offered_node_s(jobs, nodes)


def scale_load(jobs: Sequence[Job], nodes: int, load: float) -> list[Job]:
    """Return the same jobs with their inter-arrival times stretched so that the offered load is `load`.

    The first submission time does not change [RR 5.3.2]. Raises UserError when `load` is not a finite number above 0,
    when `nodes` is below 1, or when all jobs are submitted at one instant.
    """
    if not 0 < load < math.inf:
        raise UserError(f"offered load {load}: expected a finite number above 0")
    stretch = offered_load(jobs, nodes) / load
    first_s = jobs[0].submit_time_s
    return [replace(job, submit_time_s=first_s + (job.submit_time_s - first_s) * stretch) for job in jobs]


def _offered_node_s(jobs: Sequence[Job], nodes: int) -> float:
    if nodes < 1:
        raise UserError(f"{nodes} nodes: expected 1 or more")
    span_s = jobs[-1].submit_time_s - jobs[0].submit_time_s if jobs else 0.0
    if span_s <= 0:
        raise UserError(f"offered load of {len(jobs)} jobs submitted at one instant: expected two submit times or more")
    return nodes * span_s
