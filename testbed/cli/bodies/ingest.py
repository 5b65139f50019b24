"""`testbed ingest`: ships the points of run directories to InfluxDB."""

from __future__ import annotations

from pathlib import Path

from testbed.cli.bodies.ingest_output import ShippingProgress, print_counts
from testbed.measure.influx_address import find_address
from testbed.measure.influx_writer import InfluxWriter
from testbed.measure.shipping import ShippingCount, check_run, influx_table, ship


def ingest(
    *, runs: tuple[Path, ...], url: str | None, org: str | None, bucket: str | None, from_start: bool, gzip: bool,
    patience_s: float, as_json: bool,
) -> int:  # fmt: skip
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
