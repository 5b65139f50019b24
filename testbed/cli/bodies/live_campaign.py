"""`testbed campaign` for a campaign file of live runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import click

from testbed.errors import UserError
from testbed.scenario.schema import load_scenario
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.simulation.overheads_parser import parse_overheads
from testbed.scheduling.workload.files import write_text
from testbed.study.compare.equivalence import LEAST_RUNS, POWER, power_of, repeats_needed
from testbed.study.compare.live import read_live
from testbed.study.live_campaign.file import CompareTable, LiveCampaign, load_live_campaign
from testbed.study.live_campaign.plan import Case, cases_of
from testbed.study.live_campaign.record import Record
from testbed.study.live_campaign.work import work
from testbed.study.report.terminal.console import wide_console


def live_campaign(path: Path, out: Path | None, *, report_only: bool) -> int:
    """Do the runs of a campaign file, and compare them with their simulations; return the exit code of the verdict."""
    if missing := [name for name in ("polars", "jinja2", "matplotlib") if find_spec(name) is None]:
        raise UserError(f"a campaign of live runs needs {' and '.join(missing)}: pip install 'dfrs-testbed[report]'")
    campaign = load_live_campaign(path)
    cases = cases_of(campaign, path)
    _check(campaign, cases)
    overheads = _overheads(campaign.compare, path)
    record = Record(Path("campaigns") / campaign.name if out is None else out)
    write_text(record.folder / "campaign.toml", path.read_text(encoding="utf-8"))
    if not report_only:
        click.echo(_power_words(campaign.compare, campaign.repeats), err=True)
        try:
            left = work(campaign, cases, record, lambda text: click.echo(f"testbed: {text}", err=True))
        except KeyboardInterrupt:
            click.echo(
                f"testbed: interrupted; finished runs are in {record.folder}: the same command continues", err=True
            )
            raise
        for each in left:
            click.echo(f"testbed: no budget left to repeat {each.key}", err=True)
    return _compare(campaign.compare, overheads, record, cases)


def _check(campaign: LiveCampaign, cases: list[Case]) -> None:
    """Raise `UserError` for invalid scenarios and policies, before anything is run."""
    for case in cases:
        scenario = load_scenario(case.scenario)
        for name in campaign.policies:
            parse(name, scenario.period_s)


def _overheads(table: CompareTable, path: Path) -> str | None:
    """Return the overhead model in the form for `testbed compare`; raises `UserError` for an invalid model."""
    text = table.overheads
    if text is not None and (path.parent / text.partition("#")[0]).is_file():
        text = str(path.parent / text)
    if text is not None:
        parse_overheads(text)
    return text


def _power_words(table: CompareTable, repeats: int) -> str:
    """Return a text with the statistical power of this number of repeats to show the expected result."""
    if table.error_frac is None or table.deviation_frac is None:
        return (
            f"testbed: {repeats} repeats: the power is not known: [compare] has no error_frac and deviation_frac "
            f"from earlier runs; a verdict needs at least {LEAST_RUNS}"
        )
    distance = abs(table.goals[0] - table.error_frac)
    power = power_of(repeats, table.deviation_frac, distance)
    needed = repeats_needed(table.deviation_frac, distance)
    side = "within" if table.error_frac <= table.goals[0] else "beyond"
    return (
        f"testbed: {repeats} repeats show with a probability of {power:.2f} that a turnaround error of "
        f"{table.error_frac:.1%} is {side} {table.goals[0]:.1%}, if runs differ by {table.deviation_frac:.1%}; "
        f"{POWER:g} needs {'more than 1000' if needed is None else needed}"
    )


def _compare(table: CompareTable, overheads: str | None, record: Record, cases: Sequence[Case]) -> int:
    from testbed.cli.bodies.compare import exit_code  # noqa: PLC0415  # needs the extra report
    from testbed.study.compare.document import document  # noqa: PLC0415  # needs the extra report
    from testbed.study.compare.page import study_page  # noqa: PLC0415  # needs the extra report
    from testbed.study.compare.provenance import unlike  # noqa: PLC0415  # needs the extra report
    from testbed.study.compare.study import study  # noqa: PLC0415  # needs the extra report
    from testbed.study.compare.tables import print_study  # noqa: PLC0415  # needs the extra report
    from testbed.study.report.page.document import write_page  # noqa: PLC0415  # needs the extra report

    goals = dict(zip(("turnaround", "max_stretch"), table.goals, strict=True))
    model = None if overheads is None else parse_overheads(overheads)
    runs = [read_live(path) for path in record.paths()]
    found = study(runs, model, goals=goals)
    absent = tuple(str(case) for case in cases if not found.names & record.runs_of(case))
    found = replace(found, absent=absent, warnings=unlike(overheads, runs))
    for case in absent:
        click.echo(f"testbed: no run of {case} counts", err=True)
    for warning in found.warnings:
        click.echo(f"testbed: warning: {warning}", err=True)
    print_study(found, wide_console(), most_jobs=5)
    write_text(record.folder / "compare.json", json.dumps(document(found), indent=2, allow_nan=False) + "\n")
    write_page(study_page(found), record.folder / "compare.html")
    click.echo(f"page: {record.folder / 'compare.html'}", err=True)
    return exit_code(found)
