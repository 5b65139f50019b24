"""`testbed schema`: prints the schema of a run's measurements."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click
from rich.table import Table

from testbed.errors import UserError, nearest
from testbed.measure.schema import MEASUREMENTS, RUN_TAGS, TAGS
from testbed.measure.schema_page import as_data, markdown
from testbed.study.report.terminal.console import wide_console


def schema(*, as_json: bool, as_markdown: bool, names: tuple[str, ...]) -> None:
    for name in names:
        if name not in MEASUREMENTS:
            raise UserError(f"no measurement {name!r}{nearest(name, MEASUREMENTS)}")
    if as_json + as_markdown + bool(names) > 1:
        raise UserError("--json and --markdown each print the whole schema: give one of them, and no measurement")
    if as_json:
        click.echo(json.dumps(as_data(), indent=2))
    elif as_markdown:
        click.echo(markdown(), nl=False)
    else:
        _print(names or tuple(MEASUREMENTS))


def _print(names: Sequence[str]) -> None:
    """Print tables of these measurements, and of the tags that they have."""
    console = wide_console()
    used = set(RUN_TAGS)
    for measurement in (MEASUREMENTS[name] for name in names):
        used.update(measurement.tags)
        table = Table("field", "type", "unit", "meaning", box=None, pad_edge=False)
        for field in measurement.fields:
            table.add_row(field.name, field.kind.__name__, field.unit, field.meaning)
        console.print(f"\n{measurement.name}: {measurement.meaning}", style="bold", markup=False, highlight=False)
        console.print(f"tags {', '.join(measurement.tags + RUN_TAGS)}", markup=False, highlight=False)
        console.print(table)
    table = Table("tag", "values, or how many at most", "meaning", box=None, pad_edge=False)
    for tag in TAGS.values():
        if tag.name in used:
            table.add_row(tag.name, ", ".join(tag.values) or tag.bound, tag.meaning)
    console.print("\nTags", style="bold")
    console.print(table)
