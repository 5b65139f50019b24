"""Standard Workload Format: the logs of the Parallel Workloads Archive, 18 fields per job."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple, NoReturn

from testbed.errors import InputError
from testbed.scheduling.workload.files import read_text, text_lines, write_text

Number = int | Decimal  # a Decimal keeps all digits of a field such as 142.00, to write it as it was read


class SwfRecord(NamedTuple):  # a tuple, as it is created eight times as fast as a frozen dataclass of 18 fields
    """One line of a log, in the order and the meaning of the format's fields 1 to 18; -1 is "not known".

    Memory is in KiB per processor. Amounts may have decimals; identifiers, counts and the status may not. A job that
    was checkpointed has one line with status 0, 1 or 5 and one more, with status 2 to 4, for each part.
    """

    job_number: int
    submit_time_s: Number
    wait_time_s: Number
    run_time_s: Number
    allocated_processors: int
    average_cpu_time_s: Number
    used_memory_kib: Number
    requested_processors: int
    requested_time_s: Number
    requested_memory_kib: Number
    status: int
    user_id: int
    group_id: int
    executable_id: int
    queue_id: int
    partition_id: int
    preceding_job_number: int
    think_time_s: Number


@dataclass(frozen=True, slots=True)
class SwfLog:
    """A log: its comment lines, without line ends, and its records in file order."""

    header: tuple[str, ...]
    records: tuple[SwfRecord, ...]


FIELDS = SwfRecord._fields
_AMOUNTS = frozenset(name for name in FIELDS if name.endswith(("_s", "_kib")))

# One spelling per number, so that numbers are written byte for byte as they were read: no sign but in -1, no leading
# zeros, no exponents. With 18 digits every value is far below the limits of a float.
_INTEGER = r"(?:0|-1|[1-9][0-9]{0,17})"
_AMOUNT = r"(?:-1(?:\.0{1,18})?|(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,18})?)"
_PATTERNS = tuple(_AMOUNT if name in _AMOUNTS else _INTEGER for name in FIELDS)
_LINE = re.compile(r"[ \t]*" + r"[ \t]+".join(_PATTERNS) + r"[ \t]*")
_NEVER_MISSING = ("job_number", "submit_time_s")  # fields 1 and 2

# The archive's own column widths.
_COLUMNS = "%5s %8s %6s %6s %4s %6s %5s %4s %6s %5s %2s %3s %3s %3s %2s %2s %2s %2s"


def read_swf(path: Path) -> SwfLog:
    """Read a log (`.swf` or `.swf.gz`).

    Raises InputError, naming file, line and field, on a line without 18 numbers, and on a log without jobs;
    UserError when the file cannot be read.
    """
    return parse_swf(_text(path), str(path))


def read_records(path: Path) -> Iterator[SwfRecord]:
    """Yield the records of a log one by one, so that they need not all be in memory; errors as `read_swf`."""
    for entry in _entries(_text(path), str(path)):
        if isinstance(entry, SwfRecord):
            yield entry


def parse_swf(text: str, name: str) -> SwfLog:
    """Read a log from its text; `name` stands for the file in errors, which are those of `read_swf`."""
    header: list[str] = []
    records: list[SwfRecord] = []
    for entry in _entries(text, name):
        if isinstance(entry, SwfRecord):
            records.append(entry)
        else:
            header.append(entry)
    return SwfLog(tuple(header), tuple(records))


def write_swf(path: Path, log: SwfLog) -> None:
    """Write a log atomically: its comments first, then one line per record. Raises UserError.

    Every field is written as it was read, byte for byte, in columns as wide as the archive's; comments between jobs
    move to the head.
    """
    write_text(path, format_swf(log), errors="surrogateescape")


def format_swf(log: SwfLog) -> str:
    """Return the text of a log; see `write_swf`."""
    lines = [*log.header, *map(_format_record, log.records)]
    return "\n".join(lines) + "\n"


def _format_record(record: SwfRecord) -> str:
    return _COLUMNS % tuple(value if type(value) is int else format(value, "f") for value in record)


def _text(path: Path) -> str:
    # Comments are free text in any encoding; surrogate escapes preserve other bytes for the writer.
    return read_text(path, encoding="utf-8", errors="surrogateescape")


def _entries(text: str, name: str) -> Iterator[SwfRecord | str]:
    """Yield a record for each job and the line for each comment, in file order."""
    comments = records = 0
    for line_number, line in enumerate(text_lines(text), start=1):
        if _LINE.fullmatch(line):
            record = _record(line)
            if record.job_number < 0 or record.submit_time_s < 0:
                _refuse(line, f"{name}:{line_number}")
            records += 1
            yield record
        elif line.lstrip().startswith(";"):
            comments += 1
            yield line
        elif line.strip():
            _refuse(line, f"{name}:{line_number}")
    if not records:
        raise InputError(name, "content", f"{comments} comment lines", "at least one job")


def _record(line: str) -> SwfRecord:
    tokens = line.split()
    if "." in line:
        # The pattern of the line separates integers from amounts, which the type checker cannot infer.
        return SwfRecord(*[Decimal(token) if "." in token else int(token) for token in tokens])  # type: ignore[arg-type]
    return SwfRecord._make(map(int, tokens))  # the usual case, three times as fast


def _refuse(line: str, where: str) -> NoReturn:
    tokens = line.split()
    if len(tokens) != len(FIELDS):
        raise InputError(where, "fields", len(tokens), f"{len(FIELDS)} numbers, or a comment that begins with ';'")
    for field, pattern, token in zip(FIELDS, _PATTERNS, tokens, strict=True):
        if not re.fullmatch(pattern, token):
            kind = "a plain number such as 12 or 12.50" if field in _AMOUNTS else "a plain integer such as 12"
            raise InputError(where, field, token, f"{kind}, or -1 for not known, of at most 18 digits")
        if field in _NEVER_MISSING and token.startswith("-"):
            raise InputError(where, field, token, "0 or more, as no job is without it")
    raise InputError(where, "line", line, "nothing but blanks or tabs between the numbers")
