"""`testbed query`: SQL over run directories, and the Flux for a database that they were sent to."""

# ruff: noqa: PLC0415 - what the command needs is imported in it, so that --help is quick.

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from testbed.errors import UserError, nearest

_EXAMPLE = 'testbed query runs/RUN "SELECT * FROM jobs"'


@click.command(short_help="Ask a run directory by SQL; print ready Flux queries.")
@click.argument("words", metavar='RUN... "SQL"', nargs=-1)
@click.option("--tables", "list_tables", is_flag=True, help="List tables and columns with unit and meaning.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of rows.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write FILE.parquet, .csv or .json.")
@click.option(
    "--flux",
    metavar="[NAME]",
    is_flag=False,
    flag_value="",
    help="List the ready Flux queries for InfluxDB 2, or print one of them, of RUN if one is given.",
)
@click.option("--bucket", default="testbed", show_default=True, help="Bucket of the Flux query.")
def query(
    *, words: tuple[str, ...], list_tables: bool, as_csv: bool, as_json: bool, out: Path | None, flux: str | None,
    bucket: str,
) -> None:  # fmt: skip
    """Ask one or more run directories by SQL; no database is needed, and a run may still be going on.

    There is a table for each measurement, jobs (of jobs.csv) and events (the journal); the column run tells runs apart.

    \b
    Examples:
      testbed query RUN --tables
    Mean CPU of capped guests against their caps, by node:
      testbed query RUN "SELECT node, AVG(requested_cores) AS requested, AVG(achieved_cores) AS achieved
        FROM cap GROUP BY node ORDER BY node"
    Rescheduling penalties by job:
      testbed query RUN "SELECT job, COUNT(*) AS reschedulings, SUM(penalty_s) AS penalty_s
        FROM rescheduling GROUP BY job ORDER BY penalty_s DESC"
    The busiest second of the nodes:
      testbed query RUN "SELECT STRFTIME(time, '%H:%M:%S') AS second, AVG(cpu_frac) AS busy_frac
        FROM node GROUP BY second ORDER BY busy_frac DESC LIMIT 1"
    """  # noqa: D301  # \b keeps click from wrapping the examples
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
    from testbed.measure.sql import execute, load_tables, named_tables
    from testbed.run.parts import has_journal
    from testbed.study.report.terminal.rows import as_text, print_rows, write_rows

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
    import csv
    import json
    import sys

    from testbed.measure.tables import TABLES

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
    from rich.table import Table

    from testbed.study.report.terminal.text import wide_console

    console = wide_console()
    for table in TABLES.values():
        shown = Table(title=f"{table.name}: {table.meaning}", title_justify="left", title_style="bold")
        for heading in ("column", "type", "unit", "meaning"):
            shown.add_column(heading, no_wrap=heading != "meaning")
        for column in table.columns:
            shown.add_row(column.name, column.kind, column.unit, column.meaning)
        console.print(shown)


def _flux(words: tuple[str, ...], name: str, bucket: str, *, as_json: bool) -> None:
    import json

    from testbed.measure.flux import QUERIES, Scope, scope_of

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
