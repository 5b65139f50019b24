"""`testbed compare`: live runs and their simulation, against the noise of repeats."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command(
    short_help="Compare live runs with their simulation: equal, different, or not shown.",
    epilog="\b\nExamples:\n"
    "  testbed compare runs/*-quickstart --overheads calibration.toml\n"
    "  testbed compare runs/2026-11-20T10-31-07-quickstart --overheads constant:300 --report compare.html",
)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--overheads",
    "overheads_text",
    metavar="MODEL",
    help="As for testbed simulate: the .toml file of a calibration (wall seconds), constant:SECONDS (trace seconds), "
    "or another model.  [default: the mean penalty that each run measured]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with figures.")
@click.option(
    "--jobs",
    "most_jobs",
    type=click.IntRange(min=1),
    default=30,
    metavar="N",
    help="Maximum number of rows of each table.",
)
@click.option("--keep-disturbed", is_flag=True, help="Also compare disturbed runs in which every job was completed.")
@click.option(
    "--goals",
    "goals_text",
    metavar="TURNAROUND,STRETCH",
    default="0.05,0.1",
    show_default=True,
    help="Upper limits: of the median over jobs of the turnaround errors, and of the error of the max stretch.",
)
@deferred
def compare() -> None:
    """Replay the jobs of each RUN in the simulator, and compare the run with its simulation.

    Runs under equal conditions (jobs, nodes, time scale, seed) and the same policy are repeats. Two errors over the
    repeats are tested against their goals: the median over jobs of the relative error of the turnaround, and the
    relative error of the max stretch. Disturbed runs are left out first, by a written rule that uses only the record.

    Exit code 0: equal within the goals, and policies in the same order; 1: different, or no run was left to compare;
    2: the input is wrong; 3: not shown, because runs are too few or too noisy; 130: interrupted.
    """
