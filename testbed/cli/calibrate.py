"""`testbed calibrate`."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command()
@click.argument("lab", type=click.Path(path_type=Path), required=False)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("calibration.toml"),
    help="What was found; the trials go to a folder beside it, of the same name without its ending.",
)
@click.option("--quick", is_flag=True, help="Few conditions, three repeats: about five minutes.")
@click.option("--repeats", type=click.IntRange(min=2), metavar="N", help="Of each condition; 10, or 3 if quick.")
@click.option("--experiments", metavar="NAME,…", help="Only these; see --list.")
@click.option("--nodes", metavar="NAME,…", help="Only on these nodes of the lab.")
@click.option("--seed", type=click.IntRange(min=0), default=1, help="Decides the order of the trials.")
@click.option("--report", is_flag=True, help="Draw it, too: a page beside the --out file. Needs the extra `report`.")
@click.option("--fit-only", is_flag=True, help="No trials: fit those that are there once more.")
@click.option("--list", "list_them", is_flag=True, help="List the experiments.")
@click.option("--dry-run", is_flag=True, help="Rehearse in virtual time with nodes that do nothing; print the plan.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON on standard output.")
@deferred
def calibrate() -> None:
    """Measure on the nodes of LAB what the papers assume: what saving, restoring, migrating and capping really cost.

    LAB is a scenario file, or the name of a packaged one, of which only the lab counts; without it, two nodes of
    processes on this machine. Trials are done in random order, each with fresh guests, and journalled as they end:
    called again after Ctrl-C, the command goes on. Exit code 0: all trials were done; 1: some failed; 2: something in
    the input is wrong; 130: interrupted.

    \b
    Examples:
      testbed calibrate --quick --report
      testbed calibrate kvm-two-nodes --out kvm.toml
      testbed calibrate lab.toml --experiments save-restore,start --repeats 20
      testbed calibrate --fit-only --report --out kvm.toml
      testbed simulate trace.csv --nodes 128 --policy EASY --overheads kvm.toml
    """  # noqa: D301  # \b keeps click from wrapping the examples
