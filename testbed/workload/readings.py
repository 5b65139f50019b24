"""Readings: how a log that speaks of processors becomes jobs that speak of tasks, CPU needs and memory.

A reading is a function from a log to jobs, sorted by submission, then file order. `READINGS` holds them by name; a
new one is one more function there.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from testbed.errors import UserError, nearest
from testbed.workload.jobs import Job
from testbed.workload.swf import SwfLog, SwfRecord

Reading = Callable[[SwfLog], list[Job]]

_log = logging.getLogger(__name__)

_NODE_KIB_PER_FRAC = 2 * 1024 * 1024  # 2 GB; decimal units would move 119 jobs of HPC2N to the other kind of task
_MIN_MEM_REQ_FRAC = 0.1
_MIN_RUN_TIME_S = 1.0  # the resolution of a log: 0 is "less than a second"
_PARTIAL_EXECUTION = (2, 3, 4)  # status of a part of a checkpointed job, which has a line of its own for the whole


def hpc2n(log: SwfLog) -> list[Job]:
    """Read a log as [RR 5.3.1] reads HPC2N: nodes with two cores and 2 GiB of memory.

    The memory of a processor is max(requested, used) / 2 GiB, at least 0.1, and 0.1 where neither is known. An even
    number n of processors with less than 0.5 each gives n/2 tasks of CPU need 1.0 and twice that memory; any other job
    gives n tasks of CPU need 0.5. Processors are the requested ones, the allocated ones where the request is not known.

    Where the paper is silent: run times are the logged ones (field 4), raised to 1 s if 0; memory beyond a node is the
    whole node; a record without run time or processors (a job that never ran) and one of a partial execution gives no
    job. Each is counted in one warning. Requested times do not become estimates: [RR 5.2] lets EASY know run times.
    Raises UserError when a job number comes twice or no job is left.
    """
    notes: Counter[str] = Counter()
    jobs = [job for record in log.records if (job := _hpc2n_job(record, notes)) is not None]
    _refuse_unusable(jobs)
    for note, count in notes.items():
        _log.warning("reading hpc2n: %d of %d records %s", count, len(log.records), note)
    jobs.sort(key=lambda job: job.submit_time_s)
    return jobs


READINGS: dict[str, Reading] = {"hpc2n": hpc2n}


def find_reading(name: str) -> Reading:
    """Return the reading called `name`. Raises UserError that lists the known ones."""
    if name not in READINGS:
        raise UserError(f"no reading {name!r}; there is: {', '.join(READINGS)}{nearest(name, READINGS)}")
    return READINGS[name]


def _hpc2n_job(record: SwfRecord, notes: Counter[str]) -> Job | None:
    processors = record.requested_processors
    if processors <= 0:
        processors = record.allocated_processors
    if record.status in _PARTIAL_EXECUTION:
        notes["are parts of a job and were left out"] += 1
        return None
    if processors <= 0 or record.run_time_s < 0:
        notes["never ran (no run time or no processors) and were left out"] += 1
        return None
    run_time_s = float(record.run_time_s)
    if run_time_s == 0:
        notes["have run time 0, taken as 1 s"] += 1
        run_time_s = _MIN_RUN_TIME_S
    mem_req_frac = float(max(record.requested_memory_kib, record.used_memory_kib)) / _NODE_KIB_PER_FRAC
    if mem_req_frac > 1:
        notes["need more than 2 GiB a processor, taken as 2 GiB"] += 1
    mem_req_frac = min(max(mem_req_frac, _MIN_MEM_REQ_FRAC), 1.0)
    two_core = processors % 2 == 0 and mem_req_frac < 0.5
    return Job(
        job_id=record.job_number,
        submit_time_s=float(record.submit_time_s),
        tasks=processors // 2 if two_core else processors,
        cpu_need_frac=1.0 if two_core else 0.5,
        mem_req_frac=2 * mem_req_frac if two_core else mem_req_frac,
        run_time_s=run_time_s,
    )


def _refuse_unusable(jobs: list[Job]) -> None:
    if not jobs:
        raise UserError("the log holds no job that ran")
    seen: set[int] = set()
    for job in jobs:
        if job.job_id in seen:
            raise UserError(f"SWF job {job.job_id} is in the log twice: expected one line a job, parts of it aside")
        seen.add(job.job_id)
