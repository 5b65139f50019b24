"""`testbed serve`."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command(
    short_help="Serve a lab: its users give it jobs while it goes on.",
    epilog="\b\nExamples:\n"
    "  testbed serve xge --policy XGE\n"
    "  testbed qsub -xge --tasks 2 --need 1.0 --mem 0.2 --work 120\n"
    "  testbed qstat\n"
    "  testbed control close",
)
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--policy", metavar="NAME", help="Policy instead of the scenario's.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where run directories go."
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on standard output.")
@deferred
def serve() -> None:
    """Run the jobs that users give by `testbed qsub` on the lab of SCENARIO, and measure them as in a run.

    SCENARIO is a path, or the name of a packaged scenario; its trace is not replayed. Its table [serve] says which jobs
    are taken, from whom, and how many. `testbed control close` ends the lab once the jobs that it has are done; Ctrl-C
    ends it at once. A lab whose controller was lost goes on by `testbed resume`. The run directory is that of a run:
    `testbed trace convert --from run` makes a trace of it, which any policy can replay.

    Exit code 0: every job ended well, or was deleted; 1: a job or the run failed; 2: something in the input is wrong;
    130: interrupted (what was measured is kept).
    """
