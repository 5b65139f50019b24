"""`testbed nodes`."""

from __future__ import annotations

import click

from testbed.cli.deferred import deferred


@click.command()
@click.option("--broker", default="mqtt://127.0.0.1:1883", help="Address of the message broker.")
@click.option("--lab", default="local", help="Name of the lab.")
@click.option(
    "--wait-s", type=click.FloatRange(min=0.1, max=60), default=1.5, help="Seconds to wait for announcements."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@deferred
def nodes() -> None:
    """List the nodes whose agents have announced themselves in a lab. Exit code 1: there is none.

    \b
    Example:
      testbed nodes --broker mqtt://127.0.0.1:1883 --lab local
    """  # noqa: D301  # \b keeps click from wrapping the example
