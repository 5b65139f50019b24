"""SQL over runs: reads the tables of `testbed.measure.tables` that a query names from run directories."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from testbed.errors import UserError, nearest
from testbed.measure.frames import load_jobs, load_journal, load_points
from testbed.measure.schema import MEASUREMENTS
from testbed.measure.tables import EVENTS, JOBS, TABLES

_WORD = re.compile(r"[A-Za-z_]\w*")
_QUOTED = re.compile(r"""['"]([^'"]+)['"]""")


def named_tables(sql: str) -> list[str]:
    """Return the tables whose names occur as whole words in a query."""
    words = {word.lower() for word in _WORD.findall(sql)}
    return [name for name in TABLES if name in words]


def load_tables(runs: Sequence[str | Path], names: Sequence[str]) -> dict[str, pl.DataFrame]:
    """Return the tables with these names, with the rows of all runs one after the other; raises `UserError`."""
    parts: dict[str, list[pl.DataFrame]] = {name: [] for name in names}
    wanted = [name for name in names if name in MEASUREMENTS]
    for run in runs:
        if wanted:
            for name, frame in load_points(run, wanted).items():
                parts[name].append(frame)
        for name, load in ((JOBS.name, load_jobs), (EVENTS.name, load_journal)):
            if name in parts:
                parts[name].append(load(run))
    return {name: pl.concat(frames, how="diagonal") for name, frames in parts.items() if frames}


def execute(sql: str, tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """Return the result of a query in the SQL of polars; raises `UserError` with the error in one line."""
    try:
        with pl.SQLContext(tables, eager=True) as context:
            return context.execute(sql)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise UserError(_explain(error, tables)) from error


def _explain(error: BaseException, tables: dict[str, pl.DataFrame]) -> str:
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    message = text.partition("; valid columns")[0].removeprefix("sql parser error: ")
    match = _QUOTED.search(message)
    name = match[1].rpartition(".")[2] if match else message.split()[0]
    if message.startswith("relation"):
        hint = nearest(name, TABLES) or f"; tables: {', '.join(TABLES)}"
    elif "column" in message or isinstance(error, pl.exceptions.ColumnNotFoundError):
        columns = {column: None for frame in tables.values() for column in frame.columns}
        hint = nearest(name, columns) or "; columns: testbed query --tables"
    else:
        hint = ""
    return f"SQL: {message}{hint}"
