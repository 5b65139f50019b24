"""The job table: one job per line, comma-separated, with units in the names of the columns."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path

from testbed.bus.limits import MOST_TRACE_S
from testbed.errors import InputError, nearest
from testbed.scheduling.workload.files import read_text, write_text
from testbed.scheduling.workload.jobs import Job

REQUIRED_COLUMNS = ("job_id", "submit_time_s", "tasks", "cpu_need_frac", "mem_req_frac", "run_time_s")
OPTIONAL_COLUMNS = ("class", "estimate_s", "urgent", "program", "weight", "least_yield_frac", "true_need_frac")
COLUMNS = REQUIRED_COLUMNS + OPTIONAL_COLUMNS

# Python's own parsers also accept underscores, other digits and blanks, which other readers of the file do not.
_INTEGER = re.compile(r"[-+]?[0-9]{1,19}")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_PROGRAM = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_MAX_INT64 = 2**63 - 1
LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 1e6
LEAST_GUARANTEE = 1e-3  # of a yield; 0 for none
_USUAL = {"urgent": "0"}  # default of columns that have a text for every job


def read_table(path: Path) -> list[Job]:
    """Read a job table (`.csv` or `.csv.gz`); columns in any order, jobs sorted by submission, then file order.

    Raises InputError, naming file and line, on the first error: a column that is missing, unknown
    or duplicated; a value outside its range; a job id used twice; no job at all. UserError when the
    file cannot be read.
    """
    return parse_table(read_text(path), str(path))


def parse_table(text: str, name: str) -> list[Job]:
    """Read a job table from its text; `name` stands for the file in errors. Order and errors as `read_table`."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, None)
        if header is None:
            raise InputError(name, "content", "", f"a header {','.join(REQUIRED_COLUMNS)}")
        columns = _columns(header, f"{name}:{reader.line_num}")
        jobs: list[Job] = []
        line_of: dict[int, int] = {}
        for row in reader:
            if not row:
                continue
            where = f"{name}:{reader.line_num}"
            if len(row) != len(header):
                raise InputError(where, "values", len(row), f"{len(header)}, as the header has")
            job = _job(row, columns, where)
            if job.job_id in line_of:
                first = line_of[job.job_id]
                raise InputError(where, "job_id", job.job_id, f"an id of its own; line {first} has it already")
            line_of[job.job_id] = reader.line_num
            jobs.append(job)
    except csv.Error as error:
        raise InputError(f"{name}:{reader.line_num}", "line", str(error), "comma-separated values") from error
    if not jobs:
        raise InputError(name, "content", "a header alone", "at least one job")
    jobs.sort(key=lambda job: job.submit_time_s)
    return jobs


def write_table(path: Path, jobs: Sequence[Job]) -> None:
    """Write a job table that `read_table` reads back to equal jobs, atomically. Raises UserError."""
    write_text(path, format_table(jobs))


def format_table(jobs: Sequence[Job]) -> str:
    """Return the text of a job table; it has an optional column if any job has a value for it."""
    texts = [_optional(job) for job in jobs]
    shown = [column for column in OPTIONAL_COLUMNS if any(text[column] is not None for text in texts)]
    lines = [",".join((*REQUIRED_COLUMNS, *shown))]
    for job, text in zip(jobs, texts, strict=True):
        needs = (job.cpu_need_frac, job.mem_req_frac, job.run_time_s)
        row = [str(job.job_id), repr(float(job.submit_time_s)), str(job.tasks), *(repr(float(need)) for need in needs)]
        row += [_USUAL.get(column, "") if (cell := text[column]) is None else cell for column in shown]
        lines.append(",".join(row))
    return "\n".join(lines) + "\n"


def _optional(job: Job) -> dict[str, str | None]:
    """Return the texts of the optional columns, None for default values."""
    return {
        "class": None if job.job_class is None else _quoted(job.job_class),
        "estimate_s": None if job.estimate_s is None else repr(float(job.estimate_s)),
        "urgent": "1" if job.urgent else None,
        "program": job.program,
        "weight": None if job.weight == 1.0 else repr(float(job.weight)),
        "least_yield_frac": repr(float(job.least_yield_frac)) if job.least_yield_frac else None,
        "true_need_frac": None if job.true_need_frac is None else repr(float(job.true_need_frac)),
    }


def _quoted(text: str) -> str:
    # Not by csv.writer: before Python 3.13 it does not quote a lone carriage return, at which its reader ends the line.
    return '"' + text.replace('"', '""') + '"' if any(char in text for char in ',"\r\n') else text


def _columns(header: list[str], where: str) -> dict[str, int]:
    columns: dict[str, int] = {}
    for index, column in enumerate(header):
        if column not in COLUMNS:
            raise InputError(where, "column", column, f"one of {', '.join(COLUMNS)}{nearest(column, COLUMNS)}")
        if column in columns:
            raise InputError(where, "column", column, "each column once")
        columns[column] = index
    missing = [column for column in REQUIRED_COLUMNS if column not in columns]
    if missing:
        raise InputError(where, "header", ",".join(header), f"also {', '.join(missing)}")
    return columns


def _job(row: list[str], columns: dict[str, int], where: str) -> Job:
    def integer(column: str, low: int) -> int:
        text = row[columns[column]]
        if not _INTEGER.fullmatch(text) or not low <= (value := int(text)) <= _MAX_INT64:
            raise InputError(where, column, text, f"an integer from {low} to 2^63 - 1")
        return value

    def positive(column: str, expected: str, high: float = math.inf, low: float = 0.0) -> float:
        text = row[columns[column]]
        if (
            not _NUMBER.fullmatch(text)
            or not math.isfinite(value := float(text))
            or not 0 < value <= high
            or value < low
        ):
            raise InputError(where, column, text, expected)
        return value

    def has(column: str) -> bool:
        return column in columns and row[columns[column]] != ""

    def least_yield_frac() -> float:
        text = row[columns["least_yield_frac"]]
        if not _NUMBER.fullmatch(text) or not 0 <= (value := float(text)) <= 1 or 0 < value < LEAST_GUARANTEE:
            raise InputError(where, "least_yield_frac", text, f"0, a yield from {LEAST_GUARANTEE:g} to 1, or nothing")
        return value

    def submit_time_s() -> float:
        text = row[columns["submit_time_s"]]
        if not _NUMBER.fullmatch(text) or not 0 <= (value := float(text)) <= MOST_TRACE_S:
            raise InputError(
                where, "submit_time_s", text, f"a finite number of seconds, 0 or more, at most {MOST_TRACE_S:.0f}"
            )
        return value

    fraction = "a fraction of a node in (0, 1]"
    seconds = f"a finite number of seconds above 0, at most {MOST_TRACE_S:.0f}"
    weights = f"a weight from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}"
    has_estimate = has("estimate_s")
    return Job(
        job_id=integer("job_id", 0),
        submit_time_s=submit_time_s(),
        tasks=integer("tasks", 1),
        cpu_need_frac=positive("cpu_need_frac", fraction, 1),
        mem_req_frac=positive("mem_req_frac", fraction, 1),
        run_time_s=positive("run_time_s", seconds, MOST_TRACE_S),
        job_class=(row[columns["class"]] or None) if "class" in columns else None,
        estimate_s=positive("estimate_s", f"{seconds}, or nothing", MOST_TRACE_S) if has_estimate else None,
        urgent=_urgent(row[columns["urgent"]], where) if "urgent" in columns else False,
        program=_program(row[columns["program"]], where) if "program" in columns else None,
        weight=positive("weight", weights, MOST_WEIGHT, LEAST_WEIGHT) if has("weight") else 1.0,
        least_yield_frac=least_yield_frac() if has("least_yield_frac") else 0.0,
        true_need_frac=positive("true_need_frac", f"{fraction}, or nothing", 1.0) if has("true_need_frac") else None,
    )


def _urgent(text: str, where: str) -> bool:
    if text not in ("", "0", "1"):
        raise InputError(where, "urgent", text, "1, for a job for which others may be paused, or 0")
    return text == "1"


def _program(text: str, where: str) -> str | None:
    if text and not _PROGRAM.fullmatch(text):
        raise InputError(where, "program", text, "a name of a program such as eatcpu, or nothing")
    return text or None
