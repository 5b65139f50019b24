"""`testbed compare`: live runs beside their simulation, against the noise of repeats."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command(
    short_help="Set live runs beside their simulation: equal, different, or not shown.",
    epilog="\b\nExamples:\n"
    "  testbed compare runs/*-quickstart --overheads calibration.toml\n"
    "  testbed compare runs/2026-11-20T10-31-07-quickstart --overheads constant:300 --report compare.html",
)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--overheads",
    "overheads_text",
    metavar="MODEL",
    help="As of testbed simulate: a .toml file that a calibration wrote (wall seconds), constant:SECONDS (trace "
    "seconds), or another model.  [default: the mean penalty that each run measured itself]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with figures.")
@click.option("--jobs", "most_jobs", type=click.IntRange(min=1), default=30, metavar="N", help="Rows of each table.")
@click.option("--keep-disturbed", is_flag=True, help="Compare disturbed runs too, if every job ended well.")
@click.option(
    "--goals",
    "goals_text",
    metavar="TURNAROUND,STRETCH",
    default="0.05,0.1",
    show_default=True,
    help="The most that the median turnaround error and that of the max stretch should be.",
)
@deferred
def compare() -> None:
    """Replay the segment of each RUN in the simulator, and set the two side by side.

    Runs of the same segment (jobs, nodes, time scale, seed) under the same policy are repeats. Over them two errors
    are tested against their goals: the median over jobs of the turnarounds' relative errors, and that of the max
    stretch. Runs that were disturbed are left out first, by a written rule that looks at what was recorded alone.

    Exit code 0: equal within the goals, and policies in the same order; 1: different, or nothing was left to compare;
    2: the input is wrong; 3: not shown, as runs are too few or too noisy; 130: interrupted.
    """
