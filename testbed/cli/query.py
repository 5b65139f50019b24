"""`testbed query`: SQL over run directories, and the Flux for a database that they were sent to."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command(short_help="Query run directories with SQL; print Flux queries.")
@click.argument("words", metavar='RUN... "SQL"', nargs=-1)
@click.option("--tables", "list_tables", is_flag=True, help="List tables and columns with units and meanings.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of rows.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write FILE.parquet, .csv or .json.")
@click.option(
    "--flux",
    metavar="[NAME]",
    is_flag=False,
    flag_value="",
    help="List the packaged Flux queries for InfluxDB 2, or print the query NAME, for RUN if given.",
)
@click.option("--bucket", default="testbed", show_default=True, help="Bucket of the Flux query.")
@deferred
def query() -> None:
    """Query one or more run directories with SQL. No database is needed, and a run may still be in progress.

    Each measurement is a table; the tables jobs (from jobs.csv) and events (the journal) come beside them. The column
    run names the run of a row.

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
