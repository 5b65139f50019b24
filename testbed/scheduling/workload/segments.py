"""Segments: parts of a trace as separate traces."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from testbed.errors import UserError
from testbed.scheduling.workload.jobs import Job

WEEK_S = 604_800


@dataclass(frozen=True, slots=True)
class JobRange:
    """`count` jobs from index `first` (the first job is 0); the first submission becomes 0 s."""

    first: int
    count: int

    def __post_init__(self) -> None:
        if self.first < 0 or self.count < 1:
            raise UserError(f"segment jobs {self.first}:{self.count}: expected FIRST:COUNT, FIRST >= 0 and COUNT >= 1")

    def __str__(self) -> str:
        return f"jobs {self.first}:{self.count}"


@dataclass(frozen=True, slots=True)
class Window:
    """The jobs submitted in [start_s, start_s + duration_s); the start of the window becomes 0 s."""

    start_s: float
    duration_s: float

    def __post_init__(self) -> None:
        if not (0 <= self.start_s < math.inf and 0 < self.duration_s < math.inf):
            raise UserError(
                f"segment window {self.start_s}:{self.duration_s}: expected START:DURATION in finite seconds, "
                "START >= 0 and DURATION > 0"
            )

    def __str__(self) -> str:
        return f"window {self.start_s:g}:{self.duration_s:g}"


@dataclass(frozen=True, slots=True)
class Week:
    """The jobs with submit time // 604800 = `index` [RR 5.3.1]; the start of the week becomes 0 s."""

    index: int

    def __post_init__(self) -> None:
        if self.index < 0:
            raise UserError(f"segment week {self.index}: expected 0 or more")

    def __str__(self) -> str:
        return f"week {self.index}"


Segment = JobRange | Window | Week


def cut(jobs: Sequence[Job], segment: Segment) -> list[Job]:
    """Return the jobs of a segment, with submission times from its origin on; ids and order do not change.

    `jobs` are sorted by submission. Raises UserError when the segment is empty or goes past the last job.
    """
    match segment:
        case JobRange(first, count):
            if first + count > len(jobs):
                raise UserError(f"segment {segment} goes past the end: the trace has {len(jobs)} jobs")
            chosen = jobs[first : first + count]
            origin_s = chosen[0].submit_time_s
        case Window(origin_s, duration_s):
            chosen = _between(jobs, origin_s, origin_s + duration_s)
        case Week(index):
            origin_s = float(index * WEEK_S)
            chosen = _between(jobs, origin_s, origin_s + WEEK_S)
    if not chosen:
        span = f"{jobs[0].submit_time_s:g} to {jobs[-1].submit_time_s:g} s" if jobs else "nothing"
        raise UserError(f"no job was submitted in {segment}; the trace spans {span}")
    return [replace(job, submit_time_s=job.submit_time_s - origin_s) for job in chosen]


def weeks(jobs: Sequence[Job]) -> list[Week]:
    """Return the weeks in which jobs were submitted, in order."""
    return [Week(index) for index in sorted({int(job.submit_time_s // WEEK_S) for job in jobs})]


def _between(jobs: Sequence[Job], low_s: float, high_s: float) -> Sequence[Job]:
    first = bisect_left(jobs, low_s, key=lambda job: job.submit_time_s)
    past = bisect_left(jobs, high_s, key=lambda job: job.submit_time_s)
    return jobs[first:past]
