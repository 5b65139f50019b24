"""`testbed query`: SQL over run directories, and the Flux for a database that they were sent to."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


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
@deferred
def query() -> None:
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
