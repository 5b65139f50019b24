"""`testbed replay-decisions`."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@deferred
def replay_decisions() -> None:
    """Repeat every decision that RUN recorded with the installed policy code, and compare bit for bit.

    Exit code 0: all decisions are the same; 1: some differ.

    \b
    Example:
      testbed replay-decisions runs/2026-11-20T10-31-07-quickstart
    """  # noqa: D301  # \b keeps click from wrapping the example
