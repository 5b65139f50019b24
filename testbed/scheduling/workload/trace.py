"""Reads and writes trace files in the format of their suffix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from testbed.bus.limits import MOST_TRACE_S
from testbed.errors import InputError, UserError
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.readings import READINGS, find_reading
from testbed.scheduling.workload.swf import read_records, read_swf, write_swf
from testbed.scheduling.workload.table import read_table, write_table

TABLE_SUFFIXES = (".csv", ".csv.gz")
SWF_SUFFIXES = (".swf", ".swf.gz")


def is_table(path: Path) -> bool:
    """Whether the name is that of a job table."""
    return path.name.lower().endswith(TABLE_SUFFIXES)


def is_log(path: Path) -> bool:
    """Whether the name is that of an SWF log."""
    return path.name.lower().endswith(SWF_SUFFIXES)


def load_trace(path: str | Path, reading: str | None = None) -> list[Job]:
    """Return the jobs of a job table, or of an SWF log under a reading, sorted by submission, then file order.

    Raises UserError on an unknown suffix, a log without a reading, a table with one, an unknown reading; and the
    errors of the readers of the files.
    """
    path = Path(path)
    if is_table(path):
        if reading is not None:
            raise UserError(f"{path}: a job table takes no reading, yet {reading!r} was given; it is for SWF logs")
        return read_table(path)
    if is_log(path):
        if reading is None:
            raise UserError(f"{path}: an SWF log needs a reading, to turn processors into tasks: {', '.join(READINGS)}")
        return _checked(find_reading(reading)(read_records(path), str(path)), path)
    raise UserError(f"{path}: unknown kind of trace; expected {', '.join(TABLE_SUFFIXES + SWF_SUFFIXES)}")


def _checked(jobs: list[Job], path: Path) -> list[Job]:
    """Return the jobs of a log, or raise `InputError` for one that is submitted or runs beyond the limits."""
    for job in jobs:
        for field, value in (("submit_time_s", job.submit_time_s), ("run_time_s", job.run_time_s)):
            if value > MOST_TRACE_S:
                raise InputError(f"{path}: job {job.job_id}", field, value, f"at most {MOST_TRACE_S:.0f} seconds")
    return jobs


def save_trace(path: str | Path, jobs: Sequence[Job]) -> None:
    """Write a job table, atomically. Raises UserError on another suffix than `.csv` or `.csv.gz`."""
    path = Path(path)
    check_table_name(path)
    write_table(path, jobs)


def check_table_name(path: Path) -> None:
    """Raise UserError on another suffix than `.csv` or `.csv.gz`."""
    if not is_table(path):
        raise UserError(f"{path}: traces are written as job tables; expected {_either(TABLE_SUFFIXES)}")


def convert_trace(path: Path, out: Path, reading: str | None = None) -> int:
    """Write a trace in the format of the suffix of `out`, and return the number of jobs or records.

    A log becomes a job table under a reading. Without a reading it is written as a log: checked, with the same fields
    in the archive's columns, and with its comments at the head. Raises UserError when a job table should become a log,
    when a reading is given from log to log, and the errors of `load_trace` and `save_trace`.
    """
    if not is_log(out):
        jobs = load_trace(path, reading)
        save_trace(out, jobs)
        return len(jobs)
    if not is_log(path):
        raise UserError(
            f"{out}: a job table has not the fields of a log; expected a name with {_either(TABLE_SUFFIXES)}"
        )
    if reading is not None:
        raise UserError(f"{out}: a log stays as it is, yet reading {reading!r} was given; it is for job tables")
    log = read_swf(path)
    write_swf(out, log)
    return len(log.records)


def _either(suffixes: tuple[str, str]) -> str:
    return " or ".join(suffixes)
