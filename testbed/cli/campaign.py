"""`testbed campaign`: a sweep of traces x loads x policies that is recorded on disk."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command(short_help="Simulate many traces under many policies; write tables and figures.")
@click.argument("file", metavar="FILE", required=False)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder of the campaign.  [default: campaigns/NAME]"
)
@click.option(
    "--jobs", "processes", type=click.IntRange(min=1), help="Number of processes on this machine.  [default: all cores]"
)
@click.option("--scheduler", metavar="tcp://HOST:PORT", help="Simulate on the Dask cluster of this scheduler.")
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Use only the first N seeds, weeks or files of each set."
)
@click.option("--retry-failed", is_flag=True, help="Repeat the simulations that failed.")
@click.option("--any-code", is_flag=True, help="Also keep the results of other versions of the simulator.")
@click.option("--report-only", is_flag=True, help="Simulate nothing; write results, tables and figures again.")
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Result of `testbed calibrate`, for campaigns that need it.  [default: $TESTBED_CALIBRATION]",
)
@click.option("--list", "list_ready", is_flag=True, help="List the packaged campaigns.")
@deferred
def campaign() -> None:
    """Simulate every trace of campaign FILE (a path, or the name of a packaged one) under every policy.

    The campaign is recorded in DIR: the command can be killed at any time and started again, and continues. A completed
    simulation is not repeated, also after a change of FILE; a failed simulation is recorded with its error. At the end,
    also after an interruption, DIR has results.parquet, results.csv, tables/ and figures/.

    A FILE with kind = "live" runs scenarios live instead, and compares them with their simulation (docs/compare.md).

    Exit code 0: all simulations were completed; 1: some failed; 2: the input is wrong; 130: interrupted. For live runs:
    0: equal; 1: different; 3: not shown.

    \b
    Examples:
      testbed campaign --list
      testbed campaign rr7659-unscaled --limit 2
      testbed campaign my-campaign.toml
      testbed campaign your-hardware --calibration calibration.toml
    """  # noqa: D301  # \b keeps click from wrapping the examples
