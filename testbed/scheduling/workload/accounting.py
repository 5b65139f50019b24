"""Conversion of the accounting records of a real site to the jobs of a trace.

Common to all accounting formats:

* Jobs that never ran, or had not ended, are left out.
* A job with several records, as it was restarted or as exports overlap, has the earliest of their submission times. Its
  run time is that of its last run.
* Run time 0, which in accounting is "less than a second", becomes 1 s.
* The memory of a job is the larger of the requested and the used memory.

One warning per kind counts the records that were left out or adjusted.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from dataclasses import dataclass, field

from testbed.bus.limits import MOST_NODE_CORES, MOST_NODE_MEMORY_MIB, MOST_NODES, MOST_TRACE_S
from testbed.errors import InputError, UserError
from testbed.scheduling.workload.accounting_values import Cell, Notes
from testbed.scheduling.workload.jobs import Job

TASKS = ("core", "node")
NEVER_RAN = "never ran (no start, no run time or no cores) and were left out"
NOT_ENDED = "had not ended and were left out"

_log = logging.getLogger(__name__)

_GB = 1e9  # as in `testbed simulate --node-memory-gb`
_MIN_RUN_TIME_S = 1.0  # the resolution of most accounting
_MOST_CORES = MOST_NODES * MOST_NODE_CORES
_MOST_JOB_BYTES = 2.0**60  # Slurm reports a missing memory request as a larger value
_MOST_ID = 2**63 - 1
_MOST_CLASS_CHARS = 200


@dataclass(frozen=True, slots=True)
class SiteNode:
    """A node of the site, to convert cores and memory to fractions of a node.

    `cores` are counted in the unit of the accounting. `memory_gb` is in 1e9 bytes; without it the memory of a node is
    divided evenly among its cores. `task` defines a task: one core, or all cores of a job on one node.
    """

    cores: int
    memory_gb: float | None = None
    task: str = "core"

    def __post_init__(self) -> None:
        most_gb = MOST_NODE_MEMORY_MIB * 2**20 / _GB
        if not 1 <= self.cores <= MOST_NODE_CORES:
            raise UserError(f"--cores-per-node {self.cores}: expected 1 to {MOST_NODE_CORES}")
        if self.memory_gb is not None and not 0.001 <= self.memory_gb <= most_gb:
            raise UserError(f"--node-memory-gb {self.memory_gb:g}: expected 0.001 to {most_gb:.0f}, in 1e9 bytes")
        if self.task not in TASKS:
            raise UserError(f"--task {self.task}: expected {' or '.join(TASKS)}")


@dataclass(slots=True)
class SiteJob:
    """A job that ran at a site. `number` and `task`, of an array, are the site's; `where` is its line in the file.

    Times are in seconds from any origin. `requested_bytes` and `used_bytes` are of the whole job, None if not known,
    as are `nodes` and `limit_s`, the requested time.
    """

    where: str
    number: int
    task: int | None
    submit_s: float
    start_s: float
    run_time_s: float
    cores: int
    nodes: int | None = None
    requested_bytes: float | None = None
    used_bytes: float | None = None
    job_class: str | None = None
    limit_s: float | None = None


@dataclass(slots=True)
class SiteRecords:
    """The contents of accounting: jobs by key, the number of records, and counts of those left out or adjusted."""

    jobs: dict[Hashable, SiteJob] = field(default_factory=dict)
    count: int = 0
    notes: Notes = field(default_factory=Notes)

    def add(self, key: Hashable, job: SiteJob | str) -> None:
        """Add a job, or count the reason why a record gives none.

        Of two runs with one key the later one is kept, with the earlier submission time.
        """
        if isinstance(job, str):
            self.notes[job] += 1
            return
        if (other := self.jobs.get(key)) is not None:
            self.notes["are earlier runs or copies of a job and were left out"] += 1
            submit_s = min(job.submit_s, other.submit_s)
            job = max(other, job, key=lambda run: run.start_s)
            job.submit_s = submit_s
        self.jobs[key] = job


def check_cores(cell: Cell, cores: int) -> int:
    """Return a number of cores if it is within the limits, else raise InputError."""
    if cores > _MOST_CORES:
        raise cell.error(f"at most {_MOST_CORES} cores")
    return cores


def check_class(cell: Cell) -> str | None:
    """Return the name of a queue or partition as the class of a job, None if it is empty, or raise InputError."""
    if len(cell.text) > _MOST_CLASS_CHARS or not cell.text.isprintable():
        raise cell.error(f"a name of at most {_MOST_CLASS_CHARS} printable characters")
    return cell.text or None


def trace_jobs(records: SiteRecords, node: SiteNode, name: str, source: str) -> list[Job]:
    """Return the jobs of a trace in the order of submission, the first at 0 s; `name` stands for the file.

    Logs one warning per kind of record that was left out or adjusted. Raises InputError for a job that is submitted or
    runs beyond the limits, and when no job is left.
    """
    site_jobs = sorted(records.jobs.values(), key=lambda job: job.submit_s)
    notes = records.notes
    jobs = []
    for job_id, job in zip(_ids(site_jobs, notes), site_jobs, strict=True):
        submit_time_s = round(job.submit_s - site_jobs[0].submit_s, 6)
        for what, value in (("submission after the first job", submit_time_s), ("run time", job.run_time_s)):
            if value > MOST_TRACE_S:
                raise InputError(job.where, what, value, f"at most {MOST_TRACE_S:.0f} seconds")
        tasks, cpu_need_frac, mem_req_frac = _shape(job, node, notes)
        jobs.append(
            Job(
                job_id,
                submit_time_s,
                tasks,
                cpu_need_frac,
                mem_req_frac,
                _run_time_s(job, notes),
                job.job_class,
                _estimate_s(job, notes),
            )
        )
    for note, noted in notes.items():
        _log.warning("%s: %s: %d of %d records %s", name, source, noted, records.count, note)
    if not jobs:
        raise InputError(name, "content", f"{records.count} records", "at least one job that ran")
    return jobs


def _ids(jobs: list[SiteJob], notes: Notes) -> list[int]:
    """Return the site's job numbers, followed by the digits of the task in a trace with arrays; else 1, 2, ….

    In a trace whose largest task is 250, task 4 of array 123 is job 123004, and job 124 is job 124000.
    """
    most_task = max((job.task for job in jobs if job.task is not None), default=None)
    factor = 1 if most_task is None else 10 ** len(str(most_task))
    ids = [job.number * factor + (job.task or 0) for job in jobs]
    if len(set(ids)) == len(ids) and max(ids, default=0) <= _MOST_ID:
        return ids
    notes["have new numbers, 1 for the first, as the site used a number twice or too large ones"] += len(jobs)
    return list(range(1, len(jobs) + 1))


def _shape(job: SiteJob, node: SiteNode, notes: Notes) -> tuple[int, float, float]:
    """Return tasks, CPU need and memory requirement of a task."""
    tasks, need_frac = job.cores, 1 / node.cores
    if job.nodes is not None and job.cores > job.nodes * node.cores and node.cores > 1:  # 1: a node stands for a core
        notes["had more cores per node than --cores-per-node"] += 1
    if node.task == "node":
        if job.nodes is None:
            raise InputError(job.where, "nodes", None, "a column NNodes for --task node; Grid Engine records no nodes")
        tasks, need_frac = job.nodes, min(job.cores / job.nodes / node.cores, 1.0)
    return tasks, need_frac, _mem_req_frac(job, node, tasks, need_frac, notes)


def _mem_req_frac(job: SiteJob, node: SiteNode, tasks: int, even_share_frac: float, notes: Notes) -> float:
    if node.memory_gb is None:
        return even_share_frac
    known = [size for size in (job.requested_bytes, job.used_bytes) if size is not None and size < _MOST_JOB_BYTES]
    if not known:
        notes["have no known memory, taken as their cores' even share of a node"] += 1
        return even_share_frac
    mem_req_frac = max(known) / tasks / (node.memory_gb * _GB)
    if mem_req_frac > 1:
        notes["need more memory per task than a node has, taken as a whole node's"] += 1
    return min(mem_req_frac, 1.0)


def _run_time_s(job: SiteJob, notes: Notes) -> float:
    if job.run_time_s > 0:
        return job.run_time_s
    notes["have run time 0, taken as 1 s"] += 1
    return _MIN_RUN_TIME_S


def _estimate_s(job: SiteJob, notes: Notes) -> float | None:
    if job.limit_s is not None and 0 < job.limit_s <= MOST_TRACE_S:  # a longer limit, above 31 years, limits nothing
        return job.limit_s
    notes["have no time limit and are estimated at their run time"] += 1
    return None
