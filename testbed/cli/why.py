"""`testbed why`: the history of one job of a run."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command(
    short_help="Explain the history of one job of a run.",
    epilog="\b\nExamples:\n"
    "  testbed why runs/2026-11-20T10-31-07-quickstart 75\n"
    "  testbed why runs/2026-11-20T10-31-07-quickstart 75 --json",
)
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("job", metavar="JOB", type=int)
@click.option("--json", "as_json", is_flag=True, help="Print the same facts as JSON.")
@deferred
def why() -> None:
    """Print the history of job JOB from the journal of the run directory RUN, one line per event.

    The first lines give the job's end, the reason of a failure, its run time and the causes of its waiting time. Then
    follow, in order of time, the submission, the decisions about the job, its operations with their durations, retries,
    guest events, and nodes that were lost or came back. The run may still be in progress, or its controller may have
    been killed.

    Exit code 0: the history was printed, also of a failed job; 2: no such run or job.
    """
