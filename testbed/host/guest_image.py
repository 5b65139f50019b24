"""The guest image of virtual machines on a machine's disk: `testbed.lab.guest_image` builds it, agents boot it.

A cache folder holds one folder per image, named by the key of its ingredients, with `vmlinuz`, `initramfs` and
`manifest.json`; the link `current` points to the one that was built or requested last.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

VERSION = 3  # of the recipe: increase it when the same inputs give another image
SOURCES = Path(__file__).with_name("guest_sources")  # sources of the programs in the guest
_BUILD = "testbed image build"


class GuestImageError(Exception):
    """The guest image is missing, damaged or of another release; the caller reports the error to the user."""


@dataclass(frozen=True, slots=True)
class GuestImage:
    """An image on disk. `floor_mib` is the least memory of a guest that runs it; `key` names its ingredients.

    With `waits` the image runs ranks of MPI jobs above the layer that records which ranks wait for which.
    """

    folder: Path
    kernel: Path
    initramfs: Path
    key: str
    floor_mib: int
    versions: dict[str, str]
    waits: bool = False


def default_cache() -> Path:
    """Return the cache folder: $DFRS_GUEST_IMAGES, else the system's for root and the user's own for other users."""
    if told := os.environ.get("DFRS_GUEST_IMAGES"):
        return Path(told)
    root = Path("/var/cache") if os.geteuid() == 0 else Path.home() / ".cache"
    return root / "dfrs-testbed/guest-image"


def own_fingerprints() -> dict[str, str]:
    """Return the fingerprints of the image's parts from this project: with an agent of another release they differ."""
    sources = {
        f"source {path.name}": hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(SOURCES.iterdir())
        if path.is_file()
    }
    return {"recipe": str(VERSION), **sources}


def current(cache: Path | None = None) -> GuestImage:
    """Return the image that was built last; raises `GuestImageError` when there is none."""
    cache = default_cache() if cache is None else cache
    try:
        return read((cache / "current").resolve(strict=True))
    except (OSError, ValueError, KeyError) as error:
        raise GuestImageError(f"guest image: none in {cache}: expected one to be built: {_BUILD}") from error


def read(folder: Path) -> GuestImage:
    """Return the image in a folder; raises `GuestImageError` if it is damaged, or from another release."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="ascii"))
    for name, output in manifest["outputs"].items():
        if (folder / name).stat().st_size != output["bytes"]:
            raise GuestImageError(f"guest image {folder}: {name} is damaged: expected it removed, then {_BUILD}")
    ours = own_fingerprints()
    if others := [name for name, value in ours.items() if manifest["ingredients"].get(name) != value]:
        raise GuestImageError(
            f"guest image {folder}: {others[0]} is that of another release: expected our own: {_BUILD}"
        )
    return GuestImage(
        folder, folder / "vmlinuz", folder / "initramfs", manifest["key"], manifest["floor_mib"], manifest["versions"],
        manifest.get("waits") is True,
    )  # fmt: skip
