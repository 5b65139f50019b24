"""`testbed lab who` and `testbed lab take`: who drives a lab."""

from __future__ import annotations

import click

from testbed.cli.deferred import deferred


@click.command()
@click.argument("which", metavar="[NAME|SCENARIO]", required=False)
@click.option("--broker", default=None, help="Address of the broker of lab NAME, if it is not on this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@deferred
def who() -> None:
    """Show who drives a lab, until when, and which guests its nodes hold. Exit code 0 if somebody does, 1 if nobody.

    \b
    Examples:
      testbed lab who
      testbed lab who lab-1 --broker mqtts://head:8884 --json
    """  # noqa: D301  # \b keeps click from wrapping the examples


@click.command()
@click.argument("which", metavar="[NAME|SCENARIO]", required=False)
@click.option("--broker", default=None, help="Address of the broker of lab NAME, if it is not on this machine.")
@click.option("--force", is_flag=True, help="Also from a controller that drives it: its run ends.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@deferred
def take() -> None:
    """Free a lab: end the lease of whoever drives it, and remove every guest of its nodes.

    Without --force only guests that a dead controller left are removed. Exit code 0: the lab is free; 1: something is
    left; 2: somebody drives it, or something in the input is wrong.

    \b
    Example:
      testbed lab take --force lab-1 --broker mqtts://head:8884
    """  # noqa: D301  # \b keeps click from wrapping the example
