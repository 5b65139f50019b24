"""`testbed report`: tables of runs on the terminal, and a page with figures."""

# ruff: noqa: PLC0415 - what the command needs is imported in it, so that --help is quick.

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from testbed.errors import UserError

if TYPE_CHECKING:
    from testbed.study.report.page.document import Page
    from testbed.study.report.run.facts import RunFacts
    from testbed.study.report.run.schedule import Schedule

_NEEDED = ("matplotlib", "polars", "jinja2")
_FORMATS = ("svg", "pdf", "png")


def _formats(_context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys(word.strip() for word in value.split(",") if word.strip()))
    wrong = [word for word in chosen if word not in _FORMATS]
    if wrong or not chosen:
        raise click.BadParameter(f"{value!r}: expected some of {', '.join(_FORMATS)}, such as svg,pdf", param=parameter)
    return chosen


@click.command(
    short_help="Print the tables of runs, and make a page with figures.",
    epilog="\b\nExamples:\n"
    "  testbed report runs/2026-11-20T10-31-07-quickstart\n"
    "  testbed report runs/2026-11-20T10-31-07-quickstart --simulate --figures figures --format svg,pdf\n"
    "  testbed report runs/*-quickstart --out comparison.html",
)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the summaries as JSON.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="The page.  [default: RUN/report.html]")
@click.option("--no-html", is_flag=True, help="Print only; write no page.")
@click.option("--figures", "folder", type=click.Path(path_type=Path), metavar="DIR", help="Write every figure there.")
@click.option("--format", "formats", default="svg", callback=_formats, metavar="LIST", help="Of them: svg, pdf, png.")
@click.option("--against", type=click.Path(path_type=Path), metavar="RUN", help="Another run, set against this one.")
@click.option("--simulate", is_flag=True, help="Simulate the jobs of the run, and set that against it.")
@click.option("--overheads", metavar="MODEL", help="Overheads of --simulate, as of testbed simulate.")
def report(
    *, runs: tuple[Path, ...], as_json: bool, out: Path | None, no_html: bool, folder: Path | None,
    formats: tuple[str, ...], against: Path | None, simulate: bool, overheads: str | None,
) -> None:  # fmt: skip
    """Print the tables of one or more run directories, and write a page with figures in one HTML file.

    One run's page goes to RUN/report.html, unless --out says otherwise. Several runs are set side by side, repeats of
    the same scenario, policy and seed give the noise band, and the page is written where --out says. A run that was
    interrupted or whose controller was killed is reported as far as it went.
    """
    from testbed.study.report.run.facts import read_facts

    if len(runs) > 1 and (against is not None or simulate):
        raise UserError("--against and --simulate are for one run: several runs are set side by side anyway")
    if overheads is not None and not simulate:
        raise UserError("--overheads is of the simulation: expected --simulate with it")
    if no_html and (out is not None or folder is not None or against is not None or simulate):
        raise UserError("--no-html writes no page: expected it without --out, --figures, --against and --simulate")
    asked = out is not None or folder is not None or against is not None or simulate
    found = [read_facts(path) for path in runs]
    _print(found, as_json=as_json)
    if no_html or (len(runs) > 1 and not asked):
        return
    if missing := _missing():
        text = f"the page needs {' and '.join(missing)}: pip install 'dfrs-testbed[report]'"
        if asked:
            raise UserError(text)
        click.echo(f"testbed: {text}", err=True)
        return
    page = _page(runs, against, overheads, simulate=simulate)
    _write(page, runs, out, folder, formats)


def _print(found: Sequence[RunFacts], *, as_json: bool) -> None:
    import json

    from testbed.study.report.terminal.text import metrics_table, print_facts, wide_console

    if as_json:
        click.echo(json.dumps([{"run": str(run.path), **run.summary_so_far()} for run in found], indent=2))
        return
    console = wide_console()
    for run in found:
        console.print(f"\n{run.path}", style="bold", markup=False, highlight=False)
        print_facts(run, console)
    if len(found) > 1:
        console.print(metrics_table(found))


def _missing() -> list[str]:
    from importlib.util import find_spec

    return [name for name in _NEEDED if find_spec(name) is None]


def _page(runs: Sequence[Path], against: Path | None, overheads: str | None, *, simulate: bool) -> Page:
    from dataclasses import replace

    from testbed.study.report.page.document import comparison_page, run_page
    from testbed.study.report.run.run_data import load_run_data

    materials = [load_run_data(path) for path in runs]
    if len(materials) > 1:
        return comparison_page(materials)
    others = []
    if against is not None:
        other = load_run_data(against)
        others.append(replace(other.schedule, name=f"{other.facts.name}, {other.facts.policy}"))
    if simulate:
        others.append(_simulated(runs[0], overheads))
    return run_page(materials[0], others)


def _simulated(run: Path, overheads: str | None) -> Schedule:
    from testbed.scheduling.simulation.overheads_parser import parse_overheads
    from testbed.study.report.run.simulated import simulate_run

    return simulate_run(run, None if overheads is None else parse_overheads(overheads)).schedule


def _write(page: Page, runs: Sequence[Path], out: Path | None, folder: Path | None, formats: Sequence[str]) -> None:
    from testbed.study.report.page.document import write_page
    from testbed.study.report.page.style import write_chart

    if out is not None or len(runs) == 1:
        path = runs[0] / "report.html" if out is None else out
        write_page(page, path)
        click.echo(f"page: {path}", err=True)
    if folder is not None:
        for chart in page.charts:
            for form in formats:
                write_chart(chart, folder, form)
        click.echo(f"figures: {len(page.charts)} as {', '.join(formats)} in {folder}", err=True)
