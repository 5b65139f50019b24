"""`testbed schema`: the measurements of a run."""

from __future__ import annotations

import click

from testbed.cli.deferred import deferred


@click.command(epilog="\b\nExamples:\n  testbed schema rescheduling\n  testbed schema --markdown > measurements.md")
@click.option("--json", "as_json", is_flag=True, help="Print the whole schema as JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the whole schema as a Markdown page.")
@click.argument("names", metavar="[MEASUREMENT]...", nargs=-1)
@deferred
def schema() -> None:
    """List the measurements of a run with type, unit and meaning of each field: all, or each MEASUREMENT named."""
