"""`testbed report`: tables of runs on the terminal, and a page with figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import click

from testbed.errors import UserError
from testbed.scheduling.policies.xge_slots import partitions_of
from testbed.study.report.run.facts import RunFacts, read_facts
from testbed.study.report.run.run_data import read_record
from testbed.study.report.run.slots import Slots, slots_of
from testbed.study.report.terminal.console import wide_console
from testbed.study.report.terminal.slot_table import slots_table
from testbed.study.report.terminal.text import metrics_table, print_facts

_NEEDED = ("matplotlib", "polars", "jinja2")


def report(
    *, runs: tuple[Path, ...], as_json: bool, out: Path | None, no_html: bool, folder: Path | None,
    formats: tuple[str, ...], against: Path | None, simulate: bool, overheads: str | None,
) -> None:  # fmt: skip
    if len(runs) > 1 and (against is not None or simulate):
        raise UserError("--against and --simulate are for one run: several runs are compared with each other anyway")
    if overheads is not None and not simulate:
        raise UserError("--overheads applies to the simulation: expected --simulate, too")
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
    from testbed.cli.bodies.report_page import make_page, write  # noqa: PLC0415  # needs the extra report

    write(make_page(runs, against, overheads, simulate=simulate), runs, out, folder, formats)


def _print(found: Sequence[RunFacts], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([_summary(run) for run in found], indent=2))
        return
    console = wide_console()
    for run in found:
        console.print(f"\n{run.path}", style="bold", markup=False, highlight=False)
        print_facts(run, console)
        if (slots := _slots(run)) is not None:
            console.print(slots_table(slots))
    if len(found) > 1:
        console.print(metrics_table(found))


def _summary(run: RunFacts) -> dict[str, object]:
    slots = _slots(run)
    return {
        "run": str(run.path), **run.summary_so_far(), **({} if slots is None else {"slots": slots.as_json()}),
    }  # fmt: skip


def _slots(run: RunFacts) -> Slots | None:
    """Return the slots of a run under XGE; None for other runs, and for runs in which no task was started."""
    if partitions_of(run.policy, len(run.node_names)) is None:
        return None
    return slots_of(read_record(run.path).schedule)


def _missing() -> list[str]:
    return [name for name in _NEEDED if find_spec(name) is None]
