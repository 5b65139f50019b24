"""The page of `testbed report`, which needs the packages of the extra `report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from testbed.scheduling.simulation.overheads_parser import parse_overheads
from testbed.study.report.page.document import Page, comparison_page, run_page, write_page
from testbed.study.report.page.style import write_chart
from testbed.study.report.run.run_data import load_run_data
from testbed.study.report.run.schedule import Schedule
from testbed.study.report.run.simulated import simulate_run


def make_page(runs: Sequence[Path], against: Path | None, overheads: str | None, *, simulate: bool) -> Page:
    """Return the page of one run, optionally compared with another run or a simulation, or of several runs."""
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
    return simulate_run(run, None if overheads is None else parse_overheads(overheads)).schedule


def write(page: Page, runs: Sequence[Path], out: Path | None, folder: Path | None, formats: Sequence[str]) -> None:
    """Write the page to `out`, or for one run to its directory, and all figures to `folder`."""
    if out is not None or len(runs) == 1:
        path = runs[0] / "report.html" if out is None else out
        write_page(page, path)
        click.echo(f"page: {path}", err=True)
    if folder is not None:
        for chart in page.charts:
            for form in formats:
                write_chart(chart, folder, form)
        click.echo(f"figures: {len(page.charts)} as {', '.join(formats)} in {folder}", err=True)
