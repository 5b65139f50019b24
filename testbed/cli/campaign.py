"""`testbed campaign`: traces x loads x policies as a sweep on disk."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command(short_help="Simulate many traces under many policies, resumably, and draw tables and figures.")
@click.argument("file", metavar="FILE", required=False)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="[default: campaigns/NAME]")
@click.option(
    "--jobs", "processes", type=click.IntRange(min=1), help="Processes on this machine.  [default: all cores]"
)
@click.option("--scheduler", metavar="tcp://HOST:PORT", help="Do the work on the Dask cluster of this scheduler.")
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N seeds, weeks, files of each set."
)
@click.option("--retry-failed", is_flag=True, help="Do again what failed before.")
@click.option("--any-code", is_flag=True, help="Keep results of other versions of the simulator, too.")
@click.option("--report-only", is_flag=True, help="Simulate nothing: write results, tables and figures anew.")
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What `testbed calibrate` measured, for campaigns that ask for it.  [default: $TESTBED_CALIBRATION]",
)
@click.option("--list", "list_ready", is_flag=True, help="List the packaged campaigns.")
@deferred
def campaign() -> None:
    """Simulate every trace of campaign FILE (a path, or the name of a packaged one) under every policy.

    The sweep is on disk, in DIR: kill the command at any time and start it again, and it goes on from there. What is
    done already, for this FILE or as it was before, is not done again; what failed is kept with its error. When all is
    done, and when interrupted, DIR has results.parquet, results.csv, tables/ and figures/.

    Exit code 0: all done; 1: something failed; 2: something in the input is wrong; 130: interrupted.

    \b
    Examples:
      testbed campaign --list
      testbed campaign rr7659-unscaled --limit 2
      testbed campaign my-campaign.toml
      testbed campaign your-hardware --calibration calibration.toml
    """  # noqa: D301  # \b keeps click from wrapping the examples
