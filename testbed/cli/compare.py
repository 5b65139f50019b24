"""`testbed compare`: live runs beside their simulation, against the noise of repeats."""

# ruff: noqa: PLC0415 - what the command needs is imported in it, so that --help is quick.

from __future__ import annotations

from pathlib import Path

import click

from testbed.errors import UserError


@click.command(
    short_help="Set live runs beside their simulation, against the noise band of repeats.",
    epilog="\b\nExamples:\n"
    "  testbed compare runs/*-quickstart --overheads calibration.toml\n"
    "  testbed compare runs/2026-11-20T10-31-07-quickstart --overheads constant:300 --report compare.html",
)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--overheads",
    "overheads_text",
    metavar="MODEL",
    help="As of testbed simulate: a .toml file that a calibration wrote (wall seconds), constant:SECONDS (trace "
    "seconds), or another model.  [default: the mean penalty that each run measured itself]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with figures.")
@click.option("--jobs", "most_jobs", type=click.IntRange(min=1), default=30, metavar="N", help="Rows of each table.")
@click.option("--keep-disturbed", is_flag=True, help="Compare disturbed runs too, if every job ended well.")
@click.option("--require-goals", is_flag=True, help="Exit with 1 also when a goal is missed.")
def compare(
    *, runs: tuple[Path, ...], overheads_text: str | None, as_json: bool, report: Path | None, most_jobs: int,
    keep_disturbed: bool, require_goals: bool,
) -> int:  # fmt: skip
    """Replay the segment of each RUN in the simulator, and set the two side by side.

    Runs of the same segment (jobs, nodes, time scale, seed) under the same policy are repeats: how far they are apart
    is the noise band that the simulation is held against. Runs that were disturbed are left out first, by a written
    rule that looks at what was recorded alone. Goals: the median turnaround error at most 5 %, that of the max stretch
    at most 10 %, policies in the same order.

    Exit code 0: inside the band, or there is no band; 1: outside of it, or nothing was left to compare; 2: the input
    is wrong; 130: interrupted.
    """
    from importlib.util import find_spec

    needed = ["polars", *(["jinja2", "matplotlib"] if report is not None else [])]
    if missing := [name for name in needed if find_spec(name) is None]:
        raise UserError(f"this comparison needs {' and '.join(missing)}: pip install 'dfrs-testbed[report]'")
    import json

    from testbed.scheduling.simulation.overheads_parser import parse_overheads
    from testbed.study.compare.document import document
    from testbed.study.compare.live import read_live
    from testbed.study.compare.study import OUTSIDE, study
    from testbed.study.compare.tables import print_study
    from testbed.study.report.terminal.text import wide_console

    overheads = None if overheads_text is None else parse_overheads(overheads_text)
    found = study([read_live(path) for path in runs], overheads, keep_disturbed=keep_disturbed)
    if as_json:
        click.echo(json.dumps(document(found), indent=2, allow_nan=False))
    else:
        print_study(found, wide_console(), most_jobs=most_jobs)
    if report is not None:
        from testbed.study.compare.page import study_page
        from testbed.study.report.page.document import write_page

        write_page(study_page(found), report)
        click.echo(f"page: {report}", err=True)
    bad = found.verdict == OUTSIDE or not found.groups or (require_goals and not found.goals_met)
    return 1 if bad else 0
