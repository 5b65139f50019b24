"""Output of a query's result: as a table on the terminal, as text, or as a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import click
import polars as pl
from polars import selectors
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from testbed.errors import UserError
from testbed.host.whole_files import draft_of, write_whole
from testbed.study.report.terminal.console import wide_console

_SHOWN_ROWS = 100
_WIDEST = 4000  # most characters per line of a table that is not printed on a terminal

Form = Literal["csv", "json"]


def as_text(frame: pl.DataFrame, form: Form) -> str:
    """Return CSV, or a JSON list of rows; times are ISO 8601 with nanoseconds, NaN and infinity are null.

    Raises `UserError` for lists in CSV.
    """
    plain = _plain(frame)
    if form == "json":
        return json.dumps(plain.to_dicts(), indent=2, allow_nan=False, default=str) + "\n"
    try:
        return plain.write_csv()
    except pl.exceptions.ComputeError as error:
        raise UserError(f"CSV has no lists: {str(error).splitlines()[0]}; --json has") from error


def write_rows(frame: pl.DataFrame, out: Path) -> None:
    """Write the rows to a file atomically, in the format of its suffix: .parquet, .csv or .json."""
    try:
        if out.suffix == ".parquet":
            with draft_of(out) as draft:
                frame.write_parquet(draft)
        else:
            write_whole(out, as_text(frame, "csv" if out.suffix == ".csv" else "json"))
    except OSError as error:
        raise UserError(f"{out}: cannot write: {error.strerror or error}") from error


def print_rows(frame: pl.DataFrame) -> None:
    """Print a table of the first rows, and on standard error the number of further rows."""
    shown = Table()
    for name, dtype in frame.schema.items():
        shown.add_column(name, justify="right" if dtype.is_numeric() else "left", overflow="fold")
    for row in _plain(frame.head(_SHOWN_ROWS)).rows():
        shown.add_row(*(_cell(value) for value in row))
    console = wide_console()
    if not console.is_terminal:  # lines of a file are not folded
        needed = Measurement.get(console, console.options.update(width=_WIDEST), shown).maximum
        console.width = max(console.width, needed)
    console.print(shown, markup=False, highlight=False)
    if frame.height > _SHOWN_ROWS:
        click.echo(f"testbed: {frame.height - _SHOWN_ROWS} more rows; --csv, --json or --out give all", err=True)


def _plain(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(
        selectors.datetime().dt.replace_time_zone(None).dt.to_string("%Y-%m-%dT%H:%M:%S%.9fZ"),
        pl.when(selectors.float().is_finite()).then(selectors.float()),
    )


def _cell(value: object) -> Text:
    if value is None:
        return Text("-")
    return Text(f"{value:.6g}" if isinstance(value, float) else str(value))
