"""`testbed report`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the summaries as JSON.")
def report(*, runs: tuple[Path, ...], as_json: bool) -> None:
    """Print the tables of one or more run directories; several are also set side by side.

    \b
    Example:
      testbed report runs/2026-11-20T10-31-07-quickstart
    """  # noqa: D301  # \b keeps click from wrapping the example
    import json  # noqa: PLC0415  # --help stays quick

    from testbed.measure.rundir import read_json  # noqa: PLC0415  # --help stays quick
    from testbed.report.text import print_comparison, print_run, wide_console  # noqa: PLC0415  # --help stays quick

    if as_json:
        click.echo(json.dumps([{"run": str(path), **read_json(path / "summary.json")} for path in runs], indent=2))
        return
    console = wide_console()
    for path in runs:
        console.print(f"\n{path}", style="bold", markup=False, highlight=False)
        print_run(path, console)
    if len(runs) > 1:
        print_comparison(runs, console)
