"""`testbed place`."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command(
    short_help="Place services once, for the highest minimum yield.",
    epilog="\b\nExamples:\n"
    "  testbed place services.csv --nodes 4\n"
    "  testbed place services.csv --nodes 64 --algorithm MCB8 --algorithm SGB --out placement.csv",
)
@click.argument("jobs_file", metavar="JOBS", type=click.Path(path_type=Path))
@click.option("--nodes", type=int, required=True, help="Identical nodes of the cluster.")
@click.option(
    "--algorithm",
    "algorithms",
    multiple=True,
    metavar="NAME",
    help="MILP, MCB8, SGB, SG, GB, GR, RRNZ or RRND; several may be given.  [default: all]",
)
@click.option(
    "--time-limit-s", type=float, default=60.0, show_default=True, help="For each linear program; MILP shows its gap."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of RRNZ and RRND.")
@click.option("--reading", metavar="NAME", help="How an SWF log becomes tasks; job tables take none.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.csv", help="Write the best placement there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@deferred
def place() -> None:
    """Place all tasks of JOBS on identical nodes once, as services that never end [PHD V].

    All tasks run at once, and times in the table are not read. No node gets more memory than it has; the tasks of a
    node share its CPU at equal yields. For each algorithm the least yield of any task is printed, beside the bound by
    the linear relaxation and the gap to it.

    Exit code 0: an algorithm placed all tasks; 1: none did; 2: something in the input is wrong.
    """
