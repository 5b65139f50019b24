"""Accounting of Slurm: the output of `sacct --parsable2`, one line per job or job step.

Columns may be in any order, and other columns are ignored. Of two columns for one value the first known one counts:

* `JobIDRaw`, or `JobID`: a job, a task of an array (`123_4`) or a component of a heterogeneous job (`123+1`) is a job
  of the trace. A step (`123.batch`) is not, but its `MaxRSS` times its `NTasks` counts as used by the job.
* `Submit`; `ElapsedRaw`, `Elapsed`, or `End` less `Start`; `NCPUS` or `AllocCPUS`
* optional: `Start`, `End` and `State`, which show whether a job ran and ended; `NNodes` or `AllocNodes`; `ReqMem`;
  `TimelimitRaw`, in minutes, or `Timelimit`; `Partition`
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import NamedTuple

from testbed.errors import InputError
from testbed.scheduling.workload.accounting import NEVER_RAN, NOT_ENDED, SiteJob, SiteRecords, check_class, check_cores
from testbed.scheduling.workload.accounting_values import (
    Cell,
    Clock,
    Notes,
    read_count,
    read_duration_s,
    read_seconds,
    read_size,
)
from testbed.scheduling.workload.files import text_lines

_MOST_COLUMNS = 1000  # sacct has about 120
_ID = ("JobIDRaw", "JobID")
_CORES = ("NCPUS", "AllocCPUS")
_NODES = ("NNodes", "AllocNodes")
_ELAPSED = ("ElapsedRaw", "Elapsed")
_LIMIT = ("TimelimitRaw", "Timelimit")
_OTHERS = ("Submit", "Start", "End", "State", "ReqMem", "Partition", "MaxRSS", "NTasks")
_COLUMNS = {name.casefold(): name for name in (*_ID, *_CORES, *_NODES, *_ELAPSED, *_LIMIT, *_OTHERS)}

_JOB_ID = re.compile(
    r"(?P<number>[0-9]{1,18})(?:_(?P<task>[0-9]{1,18})|_\[(?P<waiting>.*)|\+(?P<component>[0-9]{1,6}))?(?:\.(?P<step>.+))?"
)
_NOT_ENDED = frozenset(["RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "SIGNALING", "STAGE_OUT"])
_NEVER_RAN = frozenset(["PENDING", "REVOKED"])


def read_sacct(text: str, name: str, clock: Clock) -> SiteRecords:
    """Return the jobs of the text; `name` stands for the file in errors.

    Raises InputError, naming file, line and column, for a header without required columns, for a line with another
    number of values than the header, and for an invalid value.
    """
    records = SiteRecords()
    used_bytes: dict[Hashable, float] = {}
    header: _Header | None = None
    for line_number, line in enumerate(text_lines(text), start=1):
        where = f"{name}:{line_number}"
        if not line.strip():
            continue
        if header is None:
            header = _Header.read(line, where)
        elif line != header.line:  # files may be joined, each with the same header
            _add(header.row(line, where), clock, records, used_bytes)
    if header is None:
        raise InputError(name, "content", "", "the output of `sacct --parsable2`, with its header")
    for key, job in records.jobs.items():
        job.used_bytes = used_bytes.get(key)
    return records


class _Row(NamedTuple):
    """A line: its place, its values, and the indices of columns by name."""

    where: str
    values: list[str]
    columns: dict[str, int]

    def cell(self, *names: str) -> Cell:
        """Return the first known value of these columns, or a missing value."""
        found = None
        for column in names:
            if (index := self.columns.get(column)) is not None:
                found = Cell(self.where, column, self.values[index].strip(" "))
                if found.known:
                    return found
        return found or Cell(self.where, " or ".join(names), "")


class _Header(NamedTuple):
    """The first line: its text, its number of columns, and the index of each column that is read."""

    line: str
    width: int
    columns: dict[str, int]

    @classmethod
    def read(cls, line: str, where: str) -> _Header:
        """Read the names of the columns. Raises InputError when one is missing or duplicated."""
        count = line.count("|") + 1
        if count > _MOST_COLUMNS:
            raise InputError(where, "columns", count, f"at most {_MOST_COLUMNS}")
        columns: dict[str, int] = {}
        for index, written in enumerate(line.split("|")):
            if (column := _COLUMNS.get(written.strip().casefold())) is None:
                continue
            if column in columns:
                raise InputError(where, "column", written, "each column once")
            columns[column] = index
        missing = [" or ".join(names) for names in (_ID, ("Submit",), _CORES) if not columns.keys() & set(names)]
        if not columns.keys() & set(_ELAPSED) and not {"Start", "End"} <= columns.keys():
            missing.append("ElapsedRaw")
        if missing:
            raise InputError(where, "header", line, f"names of columns between '|', also {', '.join(missing)}")
        return cls(line, count, columns)

    def row(self, line: str, where: str) -> _Row:
        """Split a line. Raises InputError when it has another number of values than the header."""
        count = line.count("|") + 1
        if count != self.width:
            raise InputError(
                where,
                "values",
                count,
                f"{self.width}, as the header has; leave out columns of free text, such as JobName",
            )
        return _Row(where, line.split("|"), self.columns)


def _add(row: _Row, clock: Clock, records: SiteRecords, used_bytes: dict[Hashable, float]) -> None:
    """Add the job of a line to the records, or the memory of a step to the job that it belongs to."""
    cell = row.cell(*_ID)
    if not (match := _JOB_ID.fullmatch(cell.text)):
        raise cell.error("a job, a task of an array or a step, such as 123, 123_4 or 123.batch, of at most 18 digits")
    number = int(match["number"]) + int(match["component"] or 0)  # as JobIDRaw numbers the components
    task = int(match["task"]) if match["task"] else None
    if match["step"]:
        if size := read_size(row.cell("MaxRSS")):
            used = size * (read_count(row.cell("NTasks")) or 1)
            used_bytes[number, task] = max(used_bytes.get((number, task), 0.0), used)
        return
    records.count += 1
    waiting = match["waiting"] is not None  # the tasks of an array that have not started are one line
    records.add((number, task), NEVER_RAN if waiting else _job(row, number, task, clock, records.notes))


def _job(row: _Row, number: int, task: int | None, clock: Clock, notes: Notes) -> SiteJob | str:
    """Return the job of a line, or the reason why it gives none."""
    submit = row.cell("Submit")
    submit_s = clock.unix_time_s(submit, notes)
    if submit_s is None:
        raise submit.error("the time of the submission, which every job has")
    cores_cell = row.cell(*_CORES)
    cores = check_cores(cores_cell, read_count(cores_cell) or 0)
    run = _run(row, clock)
    if isinstance(run, str) or cores == 0:
        return run if isinstance(run, str) else NEVER_RAN
    nodes = read_count(row.cell(*_NODES)) or None
    return SiteJob(
        submit.where,
        number,
        task,
        submit_s,
        submit_s if run.start_s is None else run.start_s,
        run.time_s,
        cores,
        nodes,
        _requested_bytes(row, cores, nodes),
        job_class=check_class(row.cell("Partition")),
        limit_s=_limit_s(row),
    )


class _Run(NamedTuple):
    start_s: float | None
    time_s: float


def _run(row: _Row, clock: Clock) -> _Run | str:
    """Return the start and the run time of a job, or the reason why it gives no job of the trace."""
    start, end = row.cell("Start"), row.cell("End")
    start_s, end_s = clock.unix_time_s(start), clock.unix_time_s(end)
    state = row.cell("State").text.partition(" ")[0].upper()  # without the user in "CANCELLED by 1000"
    if state in _NEVER_RAN or ("Start" in row.columns and start_s is None):
        return NEVER_RAN
    if state in _NOT_ENDED or ("End" in row.columns and end_s is None):
        return NOT_ENDED
    time_s = _elapsed_s(row)
    if time_s is None and start_s is not None and end_s is not None:
        time_s = end_s - start_s
        if time_s < 0:
            raise end.error(f"a time from {start.text}, the start, on; clocks that were put back need --timezone")
    if time_s is None or (time_s == 0 and state == "CANCELLED"):  # some versions record a start for a waiting job
        return NEVER_RAN
    return _Run(start_s, time_s)


def _elapsed_s(row: _Row) -> float | None:
    """Return the run time that Slurm computed, without the time in which the job was suspended."""
    cell = row.cell(*_ELAPSED)
    return read_seconds(cell) if cell.field == "ElapsedRaw" else read_duration_s(cell)


def _limit_s(row: _Row) -> float | None:
    cell = row.cell(*_LIMIT)
    if cell.field != "TimelimitRaw":
        return read_duration_s(cell)
    minutes = read_count(cell)
    return None if minutes is None else 60.0 * minutes


def _requested_bytes(row: _Row, cores: int, nodes: int | None) -> float | None:
    """Return the memory that the job requested: to Slurm 20.11 per core (`4Gc`) or per node (`4Gn`), then in total."""
    cell = row.cell("ReqMem")
    unit, per = cell._replace(text=cell.text[:-1]), cell.text[-1:]
    if per == "c":
        size = read_size(unit, "M")
        return None if size is None else size * cores
    if per == "n":
        size = read_size(unit, "M")
        if size is not None and nodes is None:
            raise cell.error("a column NNodes beside memory per node")
        return None if size is None or nodes is None else size * nodes
    return read_size(cell, "M")
