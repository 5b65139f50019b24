"""`testbed serve`."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command(
    short_help="Serve a lab: users submit jobs to it.",
    epilog="\b\nExamples:\n"
    "  testbed serve xge --policy XGE\n"
    "  testbed qsub -xge --tasks 2 --need 1.0 --mem 0.2 --work 120\n"
    "  testbed qstat\n"
    "  testbed control close",
)
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--policy", metavar="NAME", help="Policy instead of the scenario's.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Folder for run directories.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on standard output.")
@deferred
def serve() -> None:
    """Run the jobs that users submit with `testbed qsub` on the lab of SCENARIO, and measure them as in a run.

    SCENARIO is a path or the name of a packaged scenario; its trace is not replayed. The table [serve] limits which
    jobs are accepted, from whom, and how many. `testbed control close` ends the lab after its last job; Ctrl-C ends it
    immediately. `testbed resume` continues a lab whose controller was lost. The result is a run directory:
    `testbed trace convert --from run` makes a trace of it, which any policy can replay.

    Exit code 0: every job succeeded or was deleted; 1: a job or the run failed; 2: the input is wrong; 130: interrupted
    (results so far are kept).
    """
