"""`testbed compare`: comparison of live runs with their simulation, against the noise of repeats."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from testbed.errors import UserError
from testbed.scheduling.simulation.overheads_parser import parse_overheads
from testbed.study.compare.equivalence import DIFFERENT, EQUAL
from testbed.study.compare.live import read_live
from testbed.study.report.terminal.console import wide_console

if TYPE_CHECKING:
    from testbed.study.compare.study import Study

NOT_SHOWN_CODE = 3


def compare(
    *, runs: tuple[Path, ...], overheads_text: str | None, as_json: bool, report: Path | None, most_jobs: int,
    keep_disturbed: bool, goals_text: str,
) -> int:  # fmt: skip
    goals = _goals(goals_text)
    needed = ["polars", *(["jinja2", "matplotlib"] if report is not None else [])]
    if missing := [name for name in needed if find_spec(name) is None]:
        raise UserError(f"this comparison needs {' and '.join(missing)}: pip install 'dfrs-testbed[report]'")
    from testbed.study.compare.document import document  # noqa: PLC0415  # needs the extra report
    from testbed.study.compare.provenance import unlike  # noqa: PLC0415  # needs the extra report
    from testbed.study.compare.study import study  # noqa: PLC0415  # needs the extra report
    from testbed.study.compare.tables import print_study  # noqa: PLC0415  # needs the extra report

    overheads = None if overheads_text is None else parse_overheads(overheads_text)
    read = [read_live(path) for path in runs]
    found = study(read, overheads, keep_disturbed=keep_disturbed, goals=goals)
    found = replace(found, warnings=unlike(overheads_text, read))
    for warning in found.warnings:
        click.echo(f"testbed: warning: {warning}", err=True)
    if as_json:
        click.echo(json.dumps(document(found), indent=2, allow_nan=False))
    else:
        print_study(found, wide_console(), most_jobs=most_jobs)
    if report is not None:
        from testbed.study.compare.page import study_page  # noqa: PLC0415  # needs the extra report
        from testbed.study.report.page.document import write_page  # noqa: PLC0415  # needs the extra report

        write_page(study_page(found), report)
        click.echo(f"page: {report}", err=True)
    return exit_code(found)


def exit_code(found: Study) -> int:
    """Return 0 if equivalence is shown, 1 for a difference or without runs to compare, 3 if neither is shown."""
    if not found.groups:
        return 1
    return {EQUAL: 0, DIFFERENT: 1}.get(found.verdict, NOT_SHOWN_CODE)


def _goals(text: str) -> dict[str, float]:
    """Parse `TURNAROUND,MAX_STRETCH`, fractions between 0 and 1; raises `UserError`."""
    try:
        turnaround, max_stretch = (float(word) for word in text.split(","))
    except ValueError:
        turnaround = max_stretch = 0.0
    if not (0.0 < turnaround < 1.0 and 0.0 < max_stretch < 1.0):
        raise UserError(f"--goals {text}: expected two fractions of 1, for turnarounds and max stretch, as 0.05,0.1")
    return {"turnaround": turnaround, "max_stretch": max_stretch}
