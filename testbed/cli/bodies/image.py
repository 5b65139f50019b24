"""`testbed image`: the guest image of virtual machines."""

from __future__ import annotations

import json
from pathlib import Path

import click

from testbed.host.guest_image import GuestImage
from testbed.lab.guest_image.image import build as build_image
from testbed.lab.guest_image.image import current


def build(*, cache: Path | None, as_json: bool) -> None:
    steps: list[str] = []

    def progress(line: str) -> None:
        steps.append(line)
        click.echo(f"building: {line}", err=True)

    found = build_image(cache, progress)
    _show(found, as_json=as_json, built=bool(steps))


def show(*, cache: Path | None, as_json: bool) -> None:
    _show(current(cache), as_json=as_json)


def _show(found: GuestImage, *, as_json: bool, built: bool | None = None) -> None:
    sizes = {"kernel_bytes": found.kernel.stat().st_size, "initramfs_bytes": found.initramfs.stat().st_size}
    if as_json:
        facts = {"folder": str(found.folder), "key": found.key, "floor_mib": found.floor_mib, **sizes}
        told = {} if built is None else {"built": built}
        click.echo(json.dumps({**facts, **told, "versions": found.versions}, indent=2))
        return
    if built is not None:
        click.echo("built" if built else "exists already")
    click.echo(f"folder     {found.folder}")
    click.echo(f"key        {found.key}")
    click.echo(f"kernel     {sizes['kernel_bytes'] / 2**20:.1f} MiB")
    click.echo(f"initramfs  {sizes['initramfs_bytes'] / 2**20:.1f} MiB")
    click.echo(f"memory     at least {found.floor_mib} MiB per guest")
    for name, version in found.versions.items():
        click.echo(f"{name:<10} {version}")
