"""`testbed ingest`: points of run directories into InfluxDB."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command(short_help="Ship the points of runs to InfluxDB, resumably.")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--url", metavar="URL", help="[default: INFLUXDB_V2_URL, else what the scenario of the run says]")
@click.option("--org", metavar="NAME", help="[default: INFLUXDB_V2_ORG, else what the scenario of the run says]")
@click.option("--bucket", metavar="NAME", help="[default: what the scenario of the run says]")
@click.option("--from-start", is_flag=True, help="Ship all points, also those that were shipped before.")
@click.option("--gzip", is_flag=True, help="Compress what is sent: for a slow way to the server.")
@click.option(
    "--patience-s",
    type=click.FloatRange(min=0),
    default=60.0,
    metavar="S",
    help="Give up when the server acknowledged nothing for so long.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON on standard output.")
@deferred
def ingest() -> None:
    """Ship the points of run directories that the database does not have yet.

    A run whose scenario has a table [influx] ships its points while it lasts; this ships what was left, or rebuilds the
    database. How far a run is shipped is kept in its directory: stop the command at any time, even kill it, and start
    it again. To ship a point twice changes nothing. The run may still be going on. Points that the server refuses are
    kept in RUN/refused.lp, with the reason. The token is taken from INFLUXDB_V2_TOKEN.

    Exit code 0: all points are shipped; 1: the server refused some, or was away; 2: something in the input is wrong,
    or the server knows no such bucket or token; 130: interrupted.

    \b
    Examples:
      testbed ingest runs/2026-11-20T10-31-07-quickstart
      testbed ingest runs/* --url http://127.0.0.1:8086 --org lab --bucket testbed --from-start
    """  # noqa: D301  # \b keeps click from wrapping the examples
