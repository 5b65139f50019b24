"""`testbed campaign`: a parameter sweep over traces, loads and policies, with results on disk."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import click

from testbed.cli.bodies.campaign_progress import CampaignProgress
from testbed.errors import UserError
from testbed.packaged import find_campaign, packaged_campaigns
from testbed.scheduling.campaign.digests import code_version
from testbed.scheduling.campaign.file import load_campaign
from testbed.scheduling.campaign.instances import TraceSets
from testbed.scheduling.campaign.plan import Plan
from testbed.scheduling.campaign.report import write_report
from testbed.scheduling.campaign.run import Place, compile_kernels, must_compile, run_units
from testbed.scheduling.campaign.sweep import Results, Sweep
from testbed.scheduling.compiler import can_compile
from testbed.scheduling.workload.files import write_text
from testbed.study.live_campaign.file import is_live, load_live_campaign
from testbed.study.report.terminal.console import LastingConsole


def campaign(
    *, file: str | None, out: Path | None, processes: int | None, scheduler: str | None, limit: int | None,
    retry_failed: bool, any_code: bool, report_only: bool, calibration: Path | None, list_ready: bool,
) -> int:  # fmt: skip
    if list_ready:
        _list()
        return 0
    if file is None:
        raise UserError("no campaign FILE; `testbed campaign --list` has the packaged ones")
    if scheduler is not None and processes is not None:
        raise UserError("--scheduler and --jobs: expected one of them; a cluster uses all of its workers")
    path = find_campaign(file)
    if is_live(path):
        return _live(path, out, report_only=report_only, others=(processes, scheduler, limit, calibration))
    chosen = load_campaign(path)
    _check_extras(scheduler)
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
            click.echo(f"testbed: interrupted; finished work is in {folder}: the same command continues", err=True)
            raise
        results = sweep.results(code, any_code=any_code)
        for text in write_report(folder, plan, results):
            click.echo(text)
        return _conclude(plan, results, folder)


def _live(path: Path, out: Path | None, *, report_only: bool, others: tuple[object, ...]) -> int:
    if any(option is not None for option in others):
        raise UserError("--jobs, --scheduler, --limit and --calibration are for simulations: this campaign runs live")
    from testbed.cli.bodies.live_campaign import live_campaign  # noqa: PLC0415  # needs the extra report

    return live_campaign(path, out, report_only=report_only)


def _list() -> None:
    ready = packaged_campaigns()
    width = max(map(len, ready))
    for name, path in ready.items():
        title = load_live_campaign(path).title if is_live(path) else load_campaign(path).title
        click.echo(f"{name:{width}}  {title}")


def _check_extras(scheduler: str | None) -> None:
    needed = ["pyarrow", "matplotlib"] + (["distributed"] if scheduler is not None else [])
    if missing := [name for name in needed if find_spec(name) is None]:
        raise UserError(f"a campaign needs {' and '.join(missing)}: pip install 'dfrs-testbed[campaign]'")


def _work(plan: Plan, sweep: Sweep, place: Place, code: str, limit: int | None, *, any_code: bool) -> None:
    known = sweep.results(code, any_code=any_code)
    if known.other_code:
        click.echo(f"testbed: {known.other_code} results are of another version; --any-code would keep them", err=True)
    if begun := sweep.interrupted():
        click.echo(
            f"testbed: {len(begun)} units were in progress when the last process ended; they are repeated", err=True
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
    console = LastingConsole(stderr=True)
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
        click.echo("testbed: --retry-failed repeats the failed ones", err=True)
    return 1 if failed else 0
