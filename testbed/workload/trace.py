"""Trace files: the one way in and out, by the suffix of the name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from testbed.errors import UserError
from testbed.workload.jobs import Job
from testbed.workload.readings import READINGS, find_reading
from testbed.workload.swf import read_swf
from testbed.workload.table import read_table, write_table

TABLE_SUFFIXES = (".csv", ".csv.gz")
SWF_SUFFIXES = (".swf", ".swf.gz")


def load_trace(path: str | Path, reading: str | None = None) -> list[Job]:
    """Return the jobs of a job table, or of an SWF log under a reading, sorted by submission, then file order.

    Raises UserError on an unknown suffix, a log without a reading, a table with one, an unknown reading; and what the
    readers of the files raise.
    """
    path = Path(path)
    name = path.name.lower()
    if name.endswith(TABLE_SUFFIXES):
        if reading is not None:
            raise UserError(f"{path}: a job table takes no reading, yet {reading!r} was given; it is for SWF logs")
        return read_table(path)
    if name.endswith(SWF_SUFFIXES):
        if reading is None:
            raise UserError(f"{path}: an SWF log needs a reading, to turn processors into tasks: {', '.join(READINGS)}")
        read = find_reading(reading)
        return read(read_swf(path))
    raise UserError(f"{path}: unknown kind of trace; expected {', '.join(TABLE_SUFFIXES + SWF_SUFFIXES)}")


def save_trace(path: str | Path, jobs: Sequence[Job]) -> None:
    """Write a job table, atomically. Raises UserError on another suffix than `.csv` or `.csv.gz`."""
    path = Path(path)
    if not path.name.lower().endswith(TABLE_SUFFIXES):
        raise UserError(f"{path}: traces are written as job tables; expected {' or '.join(TABLE_SUFFIXES)}")
    write_table(path, jobs)
