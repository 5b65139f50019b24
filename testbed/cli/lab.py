"""`testbed lab`: the lab in a box."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred
from testbed.cli.lease import take, who


@click.group()
def lab() -> None:
    """Make several independent nodes on this machine: each its own libvirtd, network, capacity and agent. Needs root.

    \b
    Example:
      testbed lab up kvm-two-nodes
      testbed lab status
      testbed run kvm-two-nodes
      testbed lab down
    """  # noqa: D301  # \b keeps click from wrapping the example


@lab.command()
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the lab as JSON on standard output.")
@deferred
def up() -> None:
    """Make the lab of SCENARIO, which has a [box] table; make again what has died of it if it is there.

    SCENARIO is a path, or the name of a packaged scenario (`testbed run --list`), such as kvm-two-nodes.
    A lab that cannot be made whole is removed again. Exit code 0: everything is there, every libvirtd answers, every
    agent is online; 1: not so; 2: something in the input is wrong, or not root; 130: interrupted.
    """


@lab.command()
@click.argument("which", metavar="[NAME|SCENARIO]", required=False)
@click.option("--dry-run", is_flag=True, help="List what would be removed.")
@deferred
def down() -> None:
    """Remove a lab with everything in it, saved guests included: by name, by scenario (file or name), or the only one.

    It finds what carries the lab's name, also of a lab that was made half or whose state is lost. Exit code 1 if
    something is left.
    """


@lab.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@deferred
def status() -> None:
    """Show the lab NAME, or all on this machine. Exit code 1 if a part of one is missing, or there is none of NAME."""


lab.add_command(who)
lab.add_command(take)
