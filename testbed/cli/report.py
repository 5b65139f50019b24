"""`testbed report`: tables of runs on the terminal, and a page with figures."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred

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
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="File of the page.  [default: RUN/report.html]"
)
@click.option("--no-html", is_flag=True, help="Print only; write no page.")
@click.option(
    "--figures",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Also write every figure to a file in DIR.",
)
@click.option(
    "--format",
    "formats",
    default="svg",
    callback=_formats,
    metavar="LIST",
    help="File formats of the figures: svg, pdf, png.",
)
@click.option(
    "--against", type=click.Path(path_type=Path), metavar="RUN", help="Also compare this run with another run."
)
@click.option("--simulate", is_flag=True, help="Also simulate the jobs of the run and compare.")
@click.option("--overheads", metavar="MODEL", help="Overhead model of --simulate, as for testbed simulate.")
@deferred
def report() -> None:
    """Print the tables of one or more run directories, and write a page with figures in one HTML file.

    The page of one run goes to RUN/report.html, unless --out names another file. Several runs are shown side by side:
    repeats of the same scenario, policy and seed give the noise band, and --out names the page. The report of a run
    that was interrupted, or whose controller was killed, covers the part that was recorded.
    """
