"""`testbed image`: the guest image of virtual machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:  # only the commands themselves need it
    from testbed.host.guest_image import GuestImage

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
def build(*, cache: Path | None, as_json: bool) -> None:
    """Build the image from this system's packages, compiler and MPICH, unless it is there already."""
    from testbed.lab.guest_image.image import build as build_image  # noqa: PLC0415  # --help stays quick

    steps: list[str] = []

    def progress(line: str) -> None:
        steps.append(line)
        click.echo(f"building: {line}", err=True)

    found = build_image(cache, progress)
    _show(found, as_json=as_json, built=bool(steps))


@image.command(epilog="\b\nExample:\n  testbed image show --json")
@_CACHE
@_JSON
def show(*, cache: Path | None, as_json: bool) -> None:
    """Show the current image."""
    from testbed.lab.guest_image.image import current  # noqa: PLC0415  # --help stays quick

    _show(current(cache), as_json=as_json)


def _show(found: GuestImage, *, as_json: bool, built: bool | None = None) -> None:
    sizes = {"kernel_bytes": found.kernel.stat().st_size, "initramfs_bytes": found.initramfs.stat().st_size}
    if as_json:
        import json  # noqa: PLC0415  # only here

        facts = {"folder": str(found.folder), "key": found.key, "floor_mib": found.floor_mib, **sizes}
        told = {} if built is None else {"built": built}
        click.echo(json.dumps({**facts, **told, "versions": found.versions}, indent=2))
        return
    if built is not None:
        click.echo("built" if built else "there already")
    click.echo(f"folder     {found.folder}")
    click.echo(f"key        {found.key}")
    click.echo(f"kernel     {sizes['kernel_bytes'] / 2**20:.1f} MiB")
    click.echo(f"initramfs  {sizes['initramfs_bytes'] / 2**20:.1f} MiB")
    click.echo(f"memory     at least {found.floor_mib} MiB a guest")
    for name, version in found.versions.items():
        click.echo(f"{name:<10} {version}")
