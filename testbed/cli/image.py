"""`testbed image`: the guest image of virtual machines."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred

_CACHE = click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of images.  [default: depends on the user]",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def image() -> None:
    """Build or show the guest image of virtual machines."""


@image.command(epilog="\b\nExample:\n  testbed image build")
@_CACHE
@_JSON
@deferred
def build() -> None:
    """Build the image from the packages, compiler and MPICH of this system, unless it exists."""


@image.command(epilog="\b\nExample:\n  testbed image show --json")
@_CACHE
@_JSON
@deferred
def show() -> None:
    """Show the current image."""
