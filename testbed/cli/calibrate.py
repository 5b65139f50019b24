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
    help="File of the result; the trials go to the folder of the same name without the suffix.",
)
@click.option("--quick", is_flag=True, help="Few conditions, three repeats: about seven minutes.")
@click.option(
    "--repeats",
    type=click.IntRange(min=2),
    metavar="N",
    help="Repeats of each condition.  [default: 10; 3 with --quick]",
)
@click.option("--experiments", metavar="NAME,…", help="Run only these experiments; see --list.")
@click.option("--nodes", metavar="NAME,…", help="Use only these nodes of the lab.")
@click.option("--seed", type=click.IntRange(min=0), default=1, help="Seed of the order of the trials.")
@click.option(
    "--report", is_flag=True, help="Also write a page with figures beside the --out file. Needs the extra `report`."
)
@click.option("--fit-only", is_flag=True, help="Run no trial; fit the recorded trials again.")
@click.option("--list", "list_them", is_flag=True, help="List the experiments.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Dry run: simulate the plan in virtual time with nodes that do nothing, and print it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
@deferred
def calibrate() -> None:
    """Measure on the nodes of LAB the costs that the papers assume: of save, restore, migration and CPU caps.

    LAB is a scenario file, or the name of a packaged scenario, of which only the lab is used. Without LAB, the lab is
    two nodes of processes on this machine. Trials run in random order, each with new guests, and are recorded as they
    end: started again after Ctrl-C, the command continues.

    Exit code 0: all trials were completed; 1: some failed; 2: the input is wrong; 130: interrupted.

    \b
    Examples:
      testbed calibrate --quick --report
      testbed calibrate kvm-two-nodes --out kvm.toml
      testbed calibrate lab.toml --experiments save-restore,start --repeats 20
      testbed calibrate --fit-only --report --out kvm.toml
      testbed simulate trace.csv --nodes 128 --policy EASY --overheads kvm.toml#extrapolate
    """  # noqa: D301  # \b keeps click from wrapping the examples
