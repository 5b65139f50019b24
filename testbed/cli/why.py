"""`testbed why`: what happened to one job of a run, and why."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command(
    short_help="Say what happened to one job of a run, and why.",
    epilog="\b\nExamples:\n"
    "  testbed why runs/2026-11-20T10-31-07-quickstart 75\n"
    "  testbed why runs/2026-11-20T10-31-07-quickstart 75 --json",
)
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("job", metavar="JOB", type=int)
@click.option("--json", "as_json", is_flag=True, help="Print the same facts as JSON.")
@deferred
def why() -> None:
    """Tell what happened to job JOB of the run directory RUN, by the run's journal: one line per event.

    The first lines say how the job ended, the reason of a failure, for how long it ran, and what it waited for. Then
    come, in their order, submission, decisions that concerned it, operations with their durations, retries, guest
    events, and nodes that went away or came back. The run may be going on, or may have been killed.

    Exit code 0 whether the job failed or not; 2 if there is no such run or job.
    """
