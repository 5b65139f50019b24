"""`testbed resume`."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command(
    short_help="Continue a run whose controller was lost.",
    epilog="\b\nExamples:\n"
    "  testbed resume runs/2026-11-20T10-31-07-hpc2n-hour\n"
    "  testbed resume runs/2026-11-20T10-31-07-hpc2n-hour --json",
)
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on standard output.")
@deferred
def resume() -> None:
    """Continue the run in directory RUN after its controller was killed or its machine restarted.

    The journal has the commands of the lost controller, and each node reports its present guests. The new controller
    takes over running guests, continues operations in progress, and continues trace time where it stopped. The time
    without a controller is reported apart, and is part of no penalty. Guests outlive their controller with
    `on_controller_loss = "keep"`, the default of runs of more than ten minutes and of served labs. Jobs whose guests
    are gone fail, or restart if the scenario says so.

    Exit code 0: every job succeeded; 1: a job or the run failed; 2: the run has ended, another controller drives it,
    or it cannot be resumed; 130: interrupted (results so far are kept).
    """
