"""`testbed resume`."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command(
    short_help="Go on with a run whose controller was lost.",
    epilog="\b\nExamples:\n"
    "  testbed resume runs/2026-11-20T10-31-07-hpc2n-hour\n"
    "  testbed resume runs/2026-11-20T10-31-07-hpc2n-hour --json",
)
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on standard output.")
@deferred
def resume() -> None:
    """Go on with the run in directory RUN, whose controller was killed or whose machine restarted.

    The journal says what the lost controller had ordered; every node is asked what is really there. Guests that went on
    are taken over, operations that were under way are carried on, and trace time goes on where it stood. The time
    without a controller is in the result, and in no penalty. Guests outlive their controller if the scenario says
    `on_controller_loss = "keep"`, the default of runs of more than ten minutes; else jobs whose guests are gone fail,
    or start again if the scenario says so.

    Exit code 0: every job ended well; 1: a job or the run failed; 2: the run is over, is driven by another controller,
    or cannot be resumed; 130: interrupted (what was measured is kept).
    """
