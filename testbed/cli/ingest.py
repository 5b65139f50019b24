"""`testbed ingest`: send the points of run directories to InfluxDB."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command(short_help="Send the points of runs to InfluxDB; can be resumed.")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--url", metavar="URL", help="Address of InfluxDB.  [default: INFLUXDB_V2_URL, else the scenario's]")
@click.option("--org", metavar="NAME", help="Organization.  [default: INFLUXDB_V2_ORG, else the scenario's]")
@click.option("--bucket", metavar="NAME", help="Bucket.  [default: the scenario's]")
@click.option("--from-start", is_flag=True, help="Send all points, also those sent before.")
@click.option("--gzip", is_flag=True, help="Compress requests, for a slow network.")
@click.option(
    "--patience-s",
    type=click.FloatRange(min=0),
    default=60.0,
    metavar="S",
    help="Timeout in seconds without an acknowledgement of the server.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON on standard output.")
@deferred
def ingest() -> None:
    """Send the points of run directories that are not in the database yet.

    A run whose scenario has a table [influx] sends its points while it lasts; this command sends the rest, or rebuilds
    the database. The progress is recorded in the run directory: the command can be stopped or killed at any time, and
    started again. A point that is sent twice changes nothing. The run may still be in progress. Points that the server
    refuses are kept in RUN/refused.lp with the reason. The token is read from INFLUXDB_V2_TOKEN.

    Exit code 0: all points were sent; 1: the server refused points, or did not answer; 2: the input is wrong, or the
    server does not know the bucket or the token; 130: interrupted.

    \b
    Examples:
      testbed ingest runs/2026-11-20T10-31-07-quickstart
      testbed ingest runs/* --url http://127.0.0.1:8086 --org lab --bucket testbed --from-start
    """  # noqa: D301  # \b keeps click from wrapping the examples
