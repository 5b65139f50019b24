"""`testbed query`: SQL over run directories, and Flux queries for a database with their points."""

from __future__ import annotations

import csv
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import click
from rich.table import Table

from testbed.errors import UserError, nearest
from testbed.measure.flux import QUERIES, Scope, scope_of
from testbed.measure.tables import TABLES
from testbed.run.parts import has_journal
from testbed.study.report.terminal.console import wide_console

_EXAMPLE = 'testbed query runs/RUN "SELECT * FROM jobs"'


def query(
    *, words: tuple[str, ...], list_tables: bool, as_csv: bool, as_json: bool, out: Path | None, flux: str | None,
    bucket: str,
) -> None:  # fmt: skip
    if list_tables and flux is not None:
        raise UserError("--tables and --flux: expected one of them")
    if as_csv and as_json:
        raise UserError("--csv and --json: expected one of them")
    if flux is not None:
        _flux(words, flux, bucket, as_json=as_json)
        return
    if list_tables:
        _tables(as_csv=as_csv, as_json=as_json)
        return
    _ask(*_split(words), out, as_csv=as_csv, as_json=as_json)


def _ask(runs: list[Path], sql: str, out: Path | None, *, as_csv: bool, as_json: bool) -> None:
    if out is not None and out.suffix not in {".parquet", ".csv", ".json"}:
        raise UserError(f"--out {out}: expected a name that ends in .parquet, .csv or .json")
    if find_spec("polars") is None:
        raise UserError("a query needs polars: pip install 'dfrs-testbed[query]'")
    from testbed.measure.sql import execute, load_tables, named_tables  # noqa: PLC0415  # needs the extra query
    from testbed.study.report.terminal.rows import as_text, print_rows, write_rows  # noqa: PLC0415  # needs the extra query

    for run in runs:
        if not has_journal(run):
            raise UserError(f"{run}: no run directory: expected one with events.jsonl, as `testbed run` writes it")
    names = named_tables(sql)
    for run in runs if "jobs" in names else []:
        if run.is_dir() and not (run / "jobs.csv").exists():
            click.echo(f"testbed: {run} has not ended: it has no rows in jobs yet", err=True)
    result = execute(sql, load_tables(runs, names))
    if out is not None:
        write_rows(result, out)
        click.echo(f"testbed: {result.height} rows in {out}", err=True)
    elif as_csv or as_json:
        click.echo(as_text(result, "csv" if as_csv else "json"), nl=False)
    else:
        print_rows(result)


def _split(words: tuple[str, ...]) -> tuple[list[Path], str]:
    *runs, sql = [*words] or [""]
    if not sql or (Path(sql).is_dir() and " " not in sql):
        raise UserError(f"no SQL after the run directories: {_EXAMPLE}")
    if not runs:
        raise UserError(f"no run directory before the SQL: {_EXAMPLE}")
    return [Path(run) for run in runs], sql


def _tables(*, as_csv: bool, as_json: bool) -> None:
    rows = [
        {
            "table": table.name,
            "column": column.name,
            "type": column.kind,
            "unit": column.unit,
            "meaning": column.meaning,
        }
        for table in TABLES.values()
        for column in table.columns
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    if as_csv:
        writer = csv.DictWriter(sys.stdout, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return

    console = wide_console()
    for table in TABLES.values():
        shown = Table(title=f"{table.name}: {table.meaning}", title_justify="left", title_style="bold")
        for heading in ("column", "type", "unit", "meaning"):
            shown.add_column(heading, no_wrap=heading != "meaning")
        for column in table.columns:
            shown.add_row(column.name, column.kind, column.unit, column.meaning)
        console.print(shown)


def _flux(words: tuple[str, ...], name: str, bucket: str, *, as_json: bool) -> None:
    if not name:
        listed = [{"name": one.name, "title": one.title, "unit": one.unit} for one in QUERIES.values()]
        if as_json:
            click.echo(json.dumps(listed, indent=2))
        for one in [] if as_json else listed:
            click.echo(f"{one['name']:{max(map(len, QUERIES))}}  {one['title']}")
        return
    if name not in QUERIES:
        raise UserError(f"--flux {name!r}: no such query{nearest(name, QUERIES) or '; --flux lists them'}")
    if len(words) > 1:
        raise UserError(f"--flux {name}: expected one run directory at most, found {len(words)}")
    scope = scope_of(Path(words[0]), bucket) if words else Scope(bucket=bucket)
    click.echo(QUERIES[name].text(scope))
