"""`testbed lab`: a lab in a box, several nodes on one machine."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred
from testbed.cli.lease import take, who


@click.group()
def lab() -> None:
    """Create a lab in a box: nodes on this machine, each with its libvirtd, network, capacity and agent. Needs root.

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
    """Create the lab of SCENARIO, which has a table [box]; in an existing lab, create its missing parts again.

    SCENARIO is a path, or the name of a packaged scenario (`testbed scenarios list`), such as kvm-two-nodes. A lab that
    cannot be completed is removed.

    Exit code 0: all parts exist, every libvirtd answers, every agent is online; 1: a part failed; 2: the input is
    wrong, or the user is not root; 130: interrupted.
    """


@lab.command()
@click.argument("which", metavar="[NAME|SCENARIO]", required=False)
@click.option("--dry-run", is_flag=True, help="List what would be removed.")
@deferred
def down() -> None:
    """Remove a lab with everything in it, saved guests included: by name, by scenario (file or name), or the only lab.

    The command finds all objects that carry the name of the lab, also of a lab that is incomplete or whose record is
    lost. Exit code 1: something is left.
    """


@lab.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@deferred
def status() -> None:
    """Show the lab NAME, or all labs on this machine. Exit code 1: a part is missing, or there is no lab NAME."""


lab.add_command(who)
lab.add_command(take)
