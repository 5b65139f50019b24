"""`testbed validate`: all errors of a scenario file."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command(epilog="\b\nExample:\n  testbed validate my-lab.toml")
@click.option("--json", "as_json", is_flag=True, help="Print the errors as JSON on standard output.")
@click.argument("scenario", type=click.Path(path_type=Path))
@deferred
def validate() -> None:
    """Check a scenario file: its keys and values, the names of its policies, and whether its jobs fit its nodes.

    Each error is one line with file, line, key, value, and the expected value. Nothing is started.

    Exit code 0: no errors; 2: errors.
    """
