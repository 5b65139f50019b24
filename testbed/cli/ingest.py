"""`testbed ingest`: points of run directories into InfluxDB."""

# ruff: noqa: PLC0415 - what the command needs is imported in it, so that --help is quick.

from __future__ import annotations

from pathlib import Path

import click


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
def ingest(
    *, runs: tuple[Path, ...], url: str | None, org: str | None, bucket: str | None, from_start: bool, gzip: bool,
    patience_s: float, as_json: bool,
) -> int:  # fmt: skip
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
    from testbed.cli.ingest_output import ShippingProgress, print_counts
    from testbed.measure.influx_address import find_address
    from testbed.measure.influx_writer import InfluxWriter
    from testbed.measure.shipping import ShippingCount, check_run, influx_table, ship

    for run in runs:
        check_run(run)
    addresses = [find_address(influx_table(run), url=url, org=org, bucket=bucket) for run in runs]
    counts: list[ShippingCount] = []
    try:
        for run, address in zip(runs, addresses, strict=True):
            writer = InfluxWriter(address, gzip=gzip)
            with ShippingProgress(run, address) as progress:
                counts.append(
                    ship(
                        run, address, writer, progress.say, progress.show, from_start=from_start, patience_s=patience_s
                    )
                )
    finally:
        print_counts(counts, as_json=as_json)
    return 0 if all(count.complete for count in counts) else 1
