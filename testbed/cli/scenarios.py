"""`testbed scenarios`: packaged scenarios, and the reference of scenario files."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.group()
def scenarios() -> None:
    """List and copy packaged scenarios; print the reference of scenario files."""


@scenarios.command("list", epilog="\b\nExample:\n  testbed scenarios list")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON on standard output.")
@deferred
def list_scenarios() -> None:
    """List packaged scenarios with their descriptions. `testbed run NAME` runs one."""


@scenarios.command("copy", epilog="\b\nExample:\n  testbed scenarios copy quickstart my-lab.toml")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@click.argument("name")
@click.argument("target", required=False, type=click.Path(path_type=Path))
@deferred
def copy_scenario() -> None:
    """Copy the packaged scenario NAME with its trace to TARGET, by default NAME.toml in the current folder.

    Exit code 0: copied; 2: no such scenario, or the file exists.
    """


@scenarios.command("reference", epilog="\b\nExample:\n  testbed scenarios reference > docs/scenario.md")
@deferred
def reference() -> None:
    """Print the reference of all keys of scenario files, in Markdown."""


@scenarios.command("schema", epilog="\b\nExample:\n  testbed scenarios schema > scenario.schema.json")
@deferred
def json_schema() -> None:
    """Print the JSON Schema of scenario files, for editors: `#:schema ./scenario.schema.json` as the first line."""
