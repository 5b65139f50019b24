"""`testbed run`."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command()
@click.argument("scenario", type=click.Path(path_type=Path), required=False)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help="Policy instead of the scenario's; several run one after the other.",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="Trace file instead of the scenario's; the scenario's [workload.segment] and reading apply to it, too.",
)
@click.option("--time-scale", type=float, metavar="X", help="Trace seconds per wall second, instead of the scenario's.")
@click.option(
    "--repeats", type=click.IntRange(min=1), default=1, metavar="N", help="Runs per policy; policies alternate."
)
@click.option("--seed", type=click.IntRange(min=0), help="Seed instead of the scenario's.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Folder for run directories.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Run in virtual time with guests that do nothing, and print the plan.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summaries as JSON on standard output.")
@click.option("--list", "list_packaged", is_flag=True, help="List the packaged scenarios.")
@deferred
def run() -> None:
    """Replay the jobs of SCENARIO on live nodes under its policies, and measure what that costs.

    SCENARIO is a path or the name of a packaged scenario (`testbed run --list`). A file takes precedence over a name.

    Exit code 0: every job succeeded; 1: a job or the run failed; 2: the input is wrong; 130: interrupted (results so
    far are kept).

    \b
    Examples:
      testbed run --list
      testbed run quickstart
      testbed run my-scenario.toml --dry-run
      testbed run quickstart --repeats 5
      testbed run quickstart --policy EASY --policy "GreedyPM */per/OPT=MIN/MINVT=600"
    """  # noqa: D301  # \b keeps click from wrapping the examples
