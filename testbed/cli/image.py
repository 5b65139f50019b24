"""`testbed image`: the guest image of virtual machines."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred

_CACHE = click.option(
    "--cache", type=click.Path(file_okay=False, path_type=Path), help="Folder of images.  [default: by user]"
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def image() -> None:
    """Build the guest image of virtual machines, or show the one that there is."""


@image.command(epilog="\b\nExample:\n  testbed image build")
@_CACHE
@_JSON
@deferred
def build() -> None:
    """Build the image from this system's packages, compiler and MPICH, unless it is there already."""


@image.command(epilog="\b\nExample:\n  testbed image show --json")
@_CACHE
@_JSON
@deferred
def show() -> None:
    """Show the current image."""
