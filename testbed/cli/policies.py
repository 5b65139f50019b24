"""`testbed policies`: which policies there are, and how their names are made."""

from __future__ import annotations

import click

from testbed.cli.deferred import deferred


@click.command(epilog="\b\nExample:\n  testbed policies greedypm")
@click.option("--json", "as_json", is_flag=True, help="Print names and grammar as JSON.")
@click.argument("filter_text", metavar="[FILTER]", default="")
@deferred
def policies() -> None:
    """List policies whose names contain FILTER (case and spaces do not matter), and the parts of a name."""
