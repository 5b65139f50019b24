"""A run directory as polars data frames, for notebooks and for `testbed query`; no InfluxDB needed.

    from testbed.measure.frames import load_jobs, load_points

    points = load_points("runs/2026-11-20T10-31-07-quickstart", ["cap", "rescheduling"])
    points["cap"].group_by("node").agg(pl.col("achieved_cores", "requested_cores").mean())
    points["rescheduling"].to_pandas()  # the same as a pandas frame

The columns are described in `testbed.measure.tables`, and by `testbed query RUN --tables`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import polars as pl

from testbed.errors import UserError, nearest
from testbed.measure.lines_reader import LinesReader, table_dtypes
from testbed.measure.rundir import journal_entries, read_json
from testbed.measure.schema import MEASUREMENTS
from testbed.measure.spool import segments
from testbed.run.parts import READ_ERRORS, open_part, reason

_BLOCK_BYTES = 8 << 20


def load_points(run: str | Path, measurements: Collection[str] | None = None) -> dict[str, pl.DataFrame]:
    """Return one frame per measurement of the run directory `run`, for the given measurements or for all.

    Columns: `time` (nanoseconds, UTC), the measurement's tags (`job` and `task` as numbers, others as text), its
    fields by the schema, null where a point lacks one, and the tags of the run. Rows are in the order of time. A
    measurement of the schema without points has an empty frame; measurements outside the schema come last. A last line
    that is still being written is left out. Raises `UserError` with file and line.
    """
    run = Path(run)
    if isinstance(measurements, str):
        measurements = [measurements]
    files = segments(run)
    if not files:
        raise UserError(f"{run}: no points.lp: expected a run directory")
    reader = LinesReader(None if measurements is None else set(measurements))
    parts: dict[str, list[pl.DataFrame]] = {
        name: [pl.DataFrame(schema=table_dtypes(name))]
        for name in (MEASUREMENTS if measurements is None else measurements)
        if name in MEASUREMENTS
    }
    for file in files:
        for first, text in _blocks(file):
            frames = reader.read(text, _at(file, first))
            for name, frame in frames.items():
                parts.setdefault(name, []).append(frame)
    for name in measurements or ():
        if name not in parts:
            raise UserError(f"{run}: no measurement {name!r}{nearest(name, [*MEASUREMENTS, *parts])}")
    loaded = {}
    for name in list(parts):
        whole = pl.concat(parts.pop(name), how="diagonal")
        loaded[name] = whole if whole["time"].is_sorted() else whole.sort("time", maintain_order=True)
    return loaded


def _at(file: Path, first: int) -> Callable[[int, str], UserError]:
    """Return a function that makes the error of a row in a block that begins with line `first` of a file."""
    return lambda row, reason: UserError(f"{file}:{first + row}: {reason}")


def _blocks(file: Path) -> Iterator[tuple[int, str]]:
    """Yield blocks of whole lines of a file, without the last line break, and the number of their first line."""
    number = 1
    left = b""
    try:
        with open_part(file) as source:
            while data := source.read(_BLOCK_BYTES):
                whole, line_break, rest = data.rpartition(b"\n")
                if not line_break:
                    left += data
                    continue
                block, left = left + whole, rest
                try:
                    text = block.decode()
                except UnicodeDecodeError as error:
                    line = number + block.count(b"\n", 0, error.start)
                    raise UserError(f"{file}:{line}: not UTF-8: {error.reason}") from error
                yield number, text
                number += text.count("\n") + 1
    except READ_ERRORS as error:
        raise UserError(f"{file}: cannot read: {reason(error)}") from error


def load_jobs(run: str | Path) -> pl.DataFrame:
    """Return jobs.csv of the run directory `run` with a column `run`; without rows before the end of the run.

    Times are trace seconds, fractions are of a node; `testbed.measure.tables.JOBS` explains each column.
    """
    run = Path(run)
    dtypes = table_dtypes("jobs")
    path = run / "jobs.csv"
    if not path.exists():
        run_name(run)
        return pl.DataFrame(schema=dtypes)
    types = {name: dtype for name, dtype in dtypes.items() if name != "run"}
    try:
        frame = pl.read_csv(path, schema_overrides=types)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UserError(f"{path}: cannot read: {str(error).splitlines()[0]}") from error
    if missing := [name for name in types if name not in frame.columns]:
        frame = frame.with_columns(pl.lit(None, dtype=types[name]).alias(name) for name in missing)
    return frame.with_columns(run=pl.lit(run_name(run))).select(dtypes.keys())


def load_journal(run: str | Path) -> pl.DataFrame:
    """Return the journal of the run directory `run`, one row per entry, in order.

    Columns: `t_s` (wall seconds since the run began), `trace_s`, `kind`, `job`, `entry` (the whole as JSON), `run`.
    """
    run = Path(run)
    entries = journal_entries(run / "events.jsonl")
    name = run_name(run)
    rows = [
        (entry.get("t_s"), entry.get("trace_s"), entry.get("kind"), entry.get("job"), json.dumps(entry), name)
        for entry in entries
    ]
    try:
        return pl.DataFrame(rows, schema=table_dtypes("events"), orient="row")
    except (TypeError, pl.exceptions.PolarsError) as error:
        raise UserError(f"{run / 'events.jsonl'}: not the journal of a run: {str(error).splitlines()[0]}") from error


def run_name(run: Path) -> str:
    """Return the value of the tag `run` of a run's points: the name in the manifest, else that of the directory."""
    if not run.is_dir():
        raise UserError(f"{run}: no such run directory")
    manifest = read_json(run / "manifest.json") if (run / "manifest.json").exists() else {}
    name = manifest.get("run")
    return name if isinstance(name, str) else run.resolve().name
