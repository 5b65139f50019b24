"""`testbed qsub`, `testbed qstat` and `testbed qdel`: a served lab from its users' side."""

from __future__ import annotations

import click

from testbed.cli.deferred import deferred

_LAB = click.option("--lab", metavar="NAME", help="The lab.  [default: the only one that is served]")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON on standard output.")


@click.command(
    short_help="Give a job to a served lab.",
    epilog="\b\nExamples:\n"
    "  testbed qsub --need 0.25 --mem 0.1 --work 600\n"
    "  testbed qsub -xge --tasks 2 --need 1.0 --mem 0.2 --work 120 --program patterns",
)
@click.option("-xge", "urgent", is_flag=True, help="Others may be paused for it, under policies that know such jobs.")
@click.option("--tasks", type=click.IntRange(1), default=1, show_default=True, help="Number of tasks.")
@click.option("--need", type=float, required=True, metavar="PART", help="CPU that a task needs, as a part of a node's.")
@click.option("--mem", type=float, required=True, metavar="PART", help="Memory of a task, as a part of a node's.")
@click.option("--work", type=float, required=True, metavar="S", help="Seconds that it takes on nodes of its own.")
@click.option("--estimate", type=float, metavar="S", help="Your estimate of that, for policies that need one.")
@click.option("--least", type=float, default=0.0, metavar="YIELD", help="Yield that it is to have whenever it runs.")
@click.option("--program", metavar="NAME", help="What its tasks run: a program of the lab's catalogue.")
@_LAB
@_JSON
@deferred
def qsub() -> None:
    """Give a job to a served lab, and print its number.

    The job is in the lab's journal when the command answers, and outlasts a loss of its controller. Exit code 0: so it
    is; 1: the lab is not served, or closed; 2: the lab does not take such a job, or no more from this user.
    """


@click.command(
    short_help="Show the jobs of a served lab.",
    epilog="\b\nExample:\n  testbed qstat --all --json",
)
@click.option("--all", "ended", is_flag=True, help="Show jobs that have ended, too.")
@_LAB
@_JSON
@deferred
def qstat() -> None:
    """Show the jobs of a served lab: whose they are, where they run, how long they waited, and how far they are.

    Exit code 0: shown; 1: the lab is not served.
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
    """End JOB, and destroy its guests. A user may end own jobs; root and the user who serves the lab may end all.

    Exit code 0: it has ended; 1: it had ended before, or cannot be ended now; 2: no such job, or somebody else's.
    """
