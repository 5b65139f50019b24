"""Conversion of a run into a trace of its jobs, to replay them under another policy."""

from __future__ import annotations

import csv
import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path

from testbed.control.manifest import job_of
from testbed.errors import FailureCode, InputError, UserError
from testbed.run import events
from testbed.run.history import History
from testbed.run.job_history import JobHistory
from testbed.run.parts import has_journal
from testbed.run.phases import Phase
from testbed.run.reader import read_history
from testbed.scheduling.workload.jobs import Job

_log = logging.getLogger(__name__)


def jobs_of_run(path: Path) -> list[Job]:
    """Return the jobs of a run directory that are done, in order of submission; the first is submitted at 0 s.

    A job that a user deleted is shortened to the work that it had done by the jobs.csv of the run; while the run goes
    on, at the last decision before the deletion. Jobs that failed, had not ended, or were deleted without any work are
    left out, with one warning per kind. Raises `UserError` if the path is no run directory, and `InputError` if no job
    is left.
    """
    if not has_journal(path):
        raise UserError(f"{path}: no journal: expected a run directory")
    told: list[events.TraceJob] = []

    def keep(event: events.Known, _history: History) -> None:
        match event:
            case events.Replay():
                told.extend(event.trace)
            case events.Arrived():
                told.append(event.arrival)

    history = read_history(path / "events.jsonl", (), keep)
    notes: Counter[str] = Counter()
    measured_s = _measured_s(path / "jobs.csv")
    found = [_work_of(job_of(each), history.jobs[each.job], measured_s.get(each.job, 0.0), notes) for each in told]
    for note, noted in notes.items():
        _log.warning("%s: %d of %d jobs %s", path, noted, len(told), note)
    jobs = sorted((job for job in found if job is not None), key=lambda job: job.submit_time_s)
    if not jobs:
        raise InputError(str(path), "jobs", len(told), "at least one that is done")
    return [replace(job, submit_time_s=job.submit_time_s - jobs[0].submit_time_s) for job in jobs]


def _measured_s(path: Path) -> dict[int, float]:
    """Return the virtual times of the jobs at their ends, by id; none without the file. Raises `UserError`."""
    if not path.exists():
        return {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return {int(row["job_id"]): float(row["virtual_time_s"] or 0.0) for row in csv.DictReader(file)}
    except (OSError, KeyError, ValueError) as error:
        raise UserError(f"{path}: expected the jobs of a run: {error!r}") from error


def _work_of(job: Job, state: JobHistory, measured_s: float, notes: Counter[str]) -> Job | None:
    """Return a job with the work that it did, or None with a note."""
    if state.phase is Phase.DONE:
        return job
    if state.failure_code != FailureCode.DELETED:
        notes["failed and were left out" if state.ended else "had not ended and were left out"] += 1
        return None
    done_s = max(state.virtual_time_s, measured_s)
    if done_s <= 0.0:
        notes["were deleted before they had done any work, and were left out"] += 1
        return None
    notes["were deleted, and are shortened to the work that they had done"] += 1
    return replace(job, run_time_s=min(done_s, job.run_time_s))
