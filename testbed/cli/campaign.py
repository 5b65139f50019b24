"""`testbed campaign`: traces x loads x policies as a sweep on disk."""

# ruff: noqa: PLC0415 - what the command needs is imported in it, so that --help is quick.

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from testbed.errors import UserError

if TYPE_CHECKING:
    from testbed.scheduling.campaign.plan import Plan
    from testbed.scheduling.campaign.run import Place
    from testbed.scheduling.campaign.sweep import Results, Sweep


@click.command(short_help="Simulate many traces under many policies, resumably, and draw tables and figures.")
@click.argument("file", metavar="FILE", required=False)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="[default: campaigns/NAME]")
@click.option(
    "--jobs", "processes", type=click.IntRange(min=1), help="Processes on this machine.  [default: all cores]"
)
@click.option("--scheduler", metavar="tcp://HOST:PORT", help="Do the work on the Dask cluster of this scheduler.")
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N seeds, weeks, files of each set."
)
@click.option("--retry-failed", is_flag=True, help="Do again what failed before.")
@click.option("--any-code", is_flag=True, help="Keep results of other versions of the simulator, too.")
@click.option("--report-only", is_flag=True, help="Simulate nothing: write results, tables and figures anew.")
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What `testbed calibrate` measured, for campaigns that ask for it.  [default: $TESTBED_CALIBRATION]",
)
@click.option("--list", "list_ready", is_flag=True, help="List the packaged campaigns.")
def campaign(
    *, file: str | None, out: Path | None, processes: int | None, scheduler: str | None, limit: int | None,
    retry_failed: bool, any_code: bool, report_only: bool, calibration: Path | None, list_ready: bool,
) -> int:  # fmt: skip
    """Simulate every trace of campaign FILE (a path, or the name of a packaged one) under every policy.

    The sweep is on disk, in DIR: kill the command at any time and start it again, and it goes on from there. What is
    done already, for this FILE or as it was before, is not done again; what failed is kept with its error. When all is
    done, and when interrupted, DIR has results.parquet, results.csv, tables/ and figures/.

    Exit code 0: all done; 1: something failed; 2: something in the input is wrong; 130: interrupted.

    \b
    Examples:
      testbed campaign --list
      testbed campaign rr7659-unscaled --limit 2
      testbed campaign my-campaign.toml
      testbed campaign your-hardware --calibration calibration.toml
    """  # noqa: D301  # \b keeps click from wrapping the examples
    from testbed.packaged import find_campaign
    from testbed.scheduling.campaign.file import load_campaign

    if list_ready:
        _list()
        return 0
    if file is None:
        raise UserError("no campaign FILE; `testbed campaign --list` has the packaged ones")
    if scheduler is not None and processes is not None:
        raise UserError("--scheduler and --jobs: expected one of them; on a cluster, its workers are what there is")
    path = find_campaign(file)
    chosen = load_campaign(path)
    _check_extras(scheduler)
    from testbed.scheduling.campaign.digests import code_version
    from testbed.scheduling.campaign.instances import TraceSets
    from testbed.scheduling.campaign.plan import Plan
    from testbed.scheduling.campaign.report import write_report
    from testbed.scheduling.campaign.run import Place
    from testbed.scheduling.campaign.sweep import Sweep
    from testbed.scheduling.workload.files import write_text

    plan = Plan(TraceSets(chosen, path), calibration)
    folder = Path("campaigns") / chosen.name if out is None else out
    if report_only and not (folder / "done").is_dir():
        raise UserError(f"{folder}: nothing to report: no campaign has worked there; --out names another folder")
    code = code_version()
    with Sweep(folder) as sweep:
        write_text(folder / "campaign.toml", path.read_text(encoding="utf-8"))
        try:
            if not report_only:
                if retry_failed:
                    sweep.forget_failures(plan.keys())
                place = Place(processes or os.cpu_count() or 1, scheduler)
                _work(plan, sweep, place, code, limit, any_code=any_code)
        except KeyboardInterrupt:
            click.echo(f"testbed: interrupted; all that has ended is in {folder}: the same command goes on", err=True)
            raise
        results = sweep.results(code, any_code=any_code)
        for text in write_report(folder, plan, results):
            click.echo(text)
        return _conclude(plan, results, folder)


def _list() -> None:
    from testbed.packaged import packaged_campaigns
    from testbed.scheduling.campaign.file import load_campaign

    ready = packaged_campaigns()
    width = max(map(len, ready))
    for name, path in ready.items():
        click.echo(f"{name:{width}}  {load_campaign(path).title}")


def _check_extras(scheduler: str | None) -> None:
    from importlib.util import find_spec

    needed = ["pyarrow", "matplotlib"] + (["distributed"] if scheduler is not None else [])
    if missing := [name for name in needed if find_spec(name) is None]:
        raise UserError(f"a campaign needs {' and '.join(missing)}: pip install 'dfrs-testbed[campaign]'")


def _work(plan: Plan, sweep: Sweep, place: Place, code: str, limit: int | None, *, any_code: bool) -> None:
    from rich.console import Console

    from testbed.cli.campaign_progress import CampaignProgress
    from testbed.scheduling.campaign.run import compile_kernels, must_compile, run_units
    from testbed.scheduling.compiler import can_compile

    known = sweep.results(code, any_code=any_code)
    if known.other_code:
        click.echo(f"testbed: {known.other_code} results are of another version; --any-code would keep them", err=True)
    if begun := sweep.interrupted():
        click.echo(
            f"testbed: {len(begun)} units were under way when the last process ended; they are done again", err=True
        )
    settled = known.settled()
    amount = plan.left(settled, limit)
    if amount == 0:
        return
    if place.scheduler is None and not can_compile():
        click.echo(
            "testbed: numba is not installed (the extra simulate): this takes some hundred times longer", err=True
        )
    elif place.scheduler is None and must_compile(plan):
        click.echo("testbed: compiling kernels, once for this version; that takes a minute or two", err=True)
        compile_kernels(plan)
    console = Console(stderr=True)
    console.print(f"{amount} simulations to do in {sweep.folder}", highlight=False, markup=False, soft_wrap=True)
    with CampaignProgress(amount, console) as progress:
        run_units(plan.units(settled, code, limit), code, sweep, place, progress)


def _conclude(plan: Plan, results: Results, folder: Path) -> int:
    keys = plan.keys()
    done = sum(key in keys for key in (*results.measures, *results.bounds))
    failed = [(label, fault) for key, (label, fault) in results.faults.items() if key in keys]
    click.echo(f"{done} of {len(keys)} simulations and bounds done, {len(failed)} failed: {folder}", err=True)
    for label, fault in failed[:10]:
        click.echo(f"  {label}, {fault.what}: {fault.error}", err=True)
    if failed:
        click.echo("testbed: --retry-failed does the failed ones again", err=True)
    return 1 if failed else 0
