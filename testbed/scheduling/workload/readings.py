"""Readings: rules to convert a log of processors to jobs with tasks, CPU needs and memory requirements.

Common to all readings:

* A job's processors are the requested ones (field 8), or the allocated ones (field 5) if the request is not known.
* Run times are the logged ones (field 4); 0, which in a log is "less than a second", becomes 1 s.
* Records without run time or without processors (-1, or 0 processors: a job that never ran) are left out. So are
  records of partial executions (status 2 to 4), as the whole job has a separate line.

One warning per kind counts the records that were left out or adjusted.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from testbed.errors import InputError, UserError, nearest
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.swf import SwfRecord

_Notes = Counter[str]
_Shape = Callable[[SwfRecord, int, _Notes], tuple[int, float, float]]

_log = logging.getLogger(__name__)

_NODE_KIB_PER_FRAC = 2 * 1024 * 1024  # 2 GB; decimal units would move 119 jobs of HPC2N to the other kind of task
_MIN_MEM_REQ_FRAC = 0.1
_MIN_RUN_TIME_S = 1.0  # the resolution of a log
_PARTIAL_EXECUTION = (2, 3, 4)  # status of a part of a checkpointed job


@dataclass(frozen=True, slots=True)
class Reading:
    """`shape` returns tasks, CPU need and memory requirement of a task; with `estimates` requested times count."""

    name: str
    shape: _Shape
    estimates: bool = False

    def __call__(self, records: Iterable[SwfRecord], where: str) -> list[Job]:
        """Return the jobs, sorted by submission, then file order; `where` stands for the file in errors and warnings.

        Raises InputError when a job number comes twice or no job is left.
        """
        notes: _Notes = Counter()
        jobs: dict[int, Job] = {}
        count = 0
        for count, record in enumerate(records, start=1):  # noqa: B007  # records may be a stream, which has no length
            job = self._job(record, notes)
            if job is None:
                continue
            if job.job_id in jobs:
                raise InputError(
                    where, "job_number", job.job_id, "one line per job, parts of a job aside; it is there twice"
                )
            jobs[job.job_id] = job
        for note, noted in notes.items():
            _log.warning("%s: reading %s: %d of %d records %s", where, self.name, noted, count, note)
        if not jobs:
            raise InputError(where, "content", f"{count} records", "at least one job that ran")
        return sorted(jobs.values(), key=lambda job: job.submit_time_s)

    def _job(self, record: SwfRecord, notes: _Notes) -> Job | None:
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
        tasks, cpu_need_frac, mem_req_frac = self.shape(record, processors, notes)
        estimate_s = self._estimate_s(record, notes) if self.estimates else None
        return Job(
            record.job_number,
            float(record.submit_time_s),
            tasks,
            cpu_need_frac,
            mem_req_frac,
            run_time_s,
            estimate_s=estimate_s,
        )

    def _estimate_s(self, record: SwfRecord, notes: _Notes) -> float | None:
        if record.requested_time_s > 0:
            return float(record.requested_time_s)
        notes["request no time and are estimated at their run time"] += 1
        return None


def find_reading(name: str) -> Reading:
    """Return the reading called `name`. Raises UserError that lists the known ones."""
    if name not in READINGS:
        raise UserError(f"no reading {name!r}; there is: {', '.join(READINGS)}{nearest(name, READINGS)}")
    return READINGS[name]


def _hpc2n(record: SwfRecord, processors: int, notes: _Notes) -> tuple[int, float, float]:
    """Read processors as cores of nodes with two cores and 2 GiB, as [RR 5.3.1] does for HPC2N.

    The memory of a processor is max(requested, used) / 2 GiB, at least 0.1, and 0.1 if neither is known. An even
    number n of processors with less than 0.5 each gives n/2 tasks of CPU need 1.0 and twice that memory; any other job
    gives n tasks of CPU need 0.5. Where the paper is silent: memory beyond a node is the whole node, and requested
    times do not become estimates, as EASY knows run times in [RR 5.2].
    """
    mem_req_frac = float(max(record.requested_memory_kib, record.used_memory_kib)) / _NODE_KIB_PER_FRAC
    if mem_req_frac > 1:
        notes["need more than 2 GiB per processor, taken as 2 GiB"] += 1
    mem_req_frac = min(max(mem_req_frac, _MIN_MEM_REQ_FRAC), 1.0)
    if processors % 2 == 0 and mem_req_frac < 0.5:
        return processors // 2, 1.0, 2 * mem_req_frac
    return processors, 0.5, mem_req_frac


def _processors(_record: SwfRecord, processors: int, _notes: _Notes) -> tuple[int, float, float]:
    """Read each processor as a whole node: CPU need 1 and memory requirement 1, so that no two tasks share a node."""
    return processors, 1.0, 1.0


hpc2n = Reading("hpc2n", _hpc2n)
processors = Reading("processors", _processors)
processors_estimates = Reading("processors-estimates", _processors, estimates=True)

READINGS: dict[str, Reading] = {reading.name: reading for reading in (hpc2n, processors, processors_estimates)}
