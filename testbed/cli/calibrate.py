"""`testbed calibrate`."""

from __future__ import annotations

from pathlib import Path

import click


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
def calibrate(
    *, lab: Path | None, out: Path, quick: bool, repeats: int | None, experiments: str | None, nodes: str | None,
    seed: int, report: bool, fit_only: bool, list_them: bool, dry_run: bool, as_json: bool,
) -> int:  # fmt: skip
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
    from testbed.cli import calibration_run  # noqa: PLC0415  # --help stays quick

    if list_them:
        return calibration_run.print_experiments(as_json=as_json)
    request = calibration_run.Request(
        lab=lab, out=out, quick=quick, repeats=repeats, experiments=_names(experiments), nodes=_names(nodes), seed=seed
    )
    if dry_run:
        return calibration_run.rehearse(request, as_json=as_json)
    return calibration_run.run(request, measure=not fit_only, report=report, as_json=as_json)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text else ()
