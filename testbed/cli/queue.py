"""`testbed qsub`, `testbed qstat` and `testbed qdel`: commands of users of a served lab."""

from __future__ import annotations

import click

from testbed.cli.deferred import deferred

_LAB = click.option("--lab", metavar="NAME", help="The lab.  [default: the only served lab]")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON on standard output.")


@click.command(
    short_help="Submit a job to a served lab.",
    epilog="\b\nExamples:\n"
    "  testbed qsub --need 0.25 --mem 0.1 --work 600\n"
    "  testbed qsub -xge --tasks 2 --need 1.0 --mem 0.2 --work 120 --program patterns",
)
@click.option(
    "-xge", "urgent", is_flag=True, help="Urgent: other jobs may be paused for it, under policies that support this."
)
@click.option("--tasks", type=click.IntRange(1), default=1, show_default=True, help="Number of tasks.")
@click.option("--need", type=float, required=True, metavar="PART", help="CPU need of a task, as a fraction of a node.")
@click.option("--mem", type=float, required=True, metavar="PART", help="Memory of a task, as a fraction of a node.")
@click.option("--work", type=float, required=True, metavar="S", help="Run time on dedicated nodes, in wall seconds.")
@click.option("--estimate", type=float, metavar="S", help="Estimated run time, for policies that need one.")
@click.option("--least", type=float, default=0.0, metavar="YIELD", help="Guaranteed yield while the job runs.")
@click.option("--program", metavar="NAME", help="Program of its tasks, from the lab's catalogue.")
@_LAB
@_JSON
@deferred
def qsub() -> None:
    """Submit a job to a served lab, and print its number.

    When the command returns, the job is in the lab's journal, and survives a loss of the controller. Exit code 0: the
    job was accepted; 1: the lab is not served, or is closed; 2: the lab does not accept such a job, or no more jobs of
    this user.
    """


@click.command(
    short_help="Show the jobs of a served lab.",
    epilog="\b\nExample:\n  testbed qstat --all --json",
)
@click.option("--all", "ended", is_flag=True, help="Include jobs that have ended.")
@_LAB
@_JSON
@deferred
def qstat() -> None:
    """Show the jobs of a served lab: their users, states, nodes, waiting times and progress.

    Exit code 0: the lab is served; 1: it is not.
    """


@click.command(
    short_help="End a job of a served lab.",
    epilog="\b\nExample:\n  testbed qdel 12",
)
@click.argument("job", type=click.IntRange(0))
@_LAB
@_JSON
@deferred
def qdel() -> None:
    """End JOB, and destroy its guests. Users may end their own jobs; root and the user who serves the lab, all jobs.

    Exit code 0: the job was ended; 1: it had ended before, or cannot be ended now; 2: no such job, or no right to it.
    """
