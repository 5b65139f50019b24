"""The guest image of virtual machines: built once from this system's parts, found again by what it was made from.

A cache folder holds one folder an image, named by the key of its ingredients, with `vmlinuz`, `initramfs` and
`manifest.json`; the link `current` points to the one that was built or asked for last. The same ingredients give the
same bytes.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from node_agent.guests.recipe import Ingredients, gather, make, own_fingerprints
from node_agent.guests.recipe_tools import sha256
from testbed.errors import UserError

FLOOR_MIB = 128  # measured: the least memory in which the guest boots and a rank of `patterns` among four runs
_BUILD = "testbed image build"


@dataclass(frozen=True, slots=True)
class GuestImage:
    """An image on disk. `floor_mib` is the least memory of a guest that runs it; `key` names its ingredients."""

    folder: Path
    kernel: Path
    initramfs: Path
    key: str
    floor_mib: int
    versions: dict[str, str]


def command_line(name: str, address: str | None = None, console: str = "ttyS0") -> str:
    """Return the kernel command line of a guest; `address` is that of its first network card, as `10.77.1.5/16`.

    `no_timer_check`: the kernel counts ticks against the processor's clock for 60 ms while it boots, and panics if some
    are missing. An emulated guest misses them when its machine lets it wait. With KVM the kernel leaves the check out.
    """
    network = "" if address is None else f" dfrs.ip={address}"
    words = f"console={console} quiet panic=-1 no_timer_check mitigations=off random.trust_cpu=on"
    return f"{words} dfrs.name={name}{network}"


def default_cache() -> Path:
    """Return the cache folder: DFRS_GUEST_IMAGES, or a system one for root and the user's own for others."""
    if told := os.environ.get("DFRS_GUEST_IMAGES"):
        return Path(told)
    root = Path("/var/cache") if os.geteuid() == 0 else Path.home() / ".cache"
    return root / "dfrs-testbed/guest-image"


def build_key(fingerprints: dict[str, str]) -> str:
    """Return the key of an image with these ingredients: 20 hexadecimal digits."""
    return sha256(json.dumps(fingerprints, sort_keys=True).encode())[:20]


def build(cache: Path | None = None, progress: Callable[[str], None] = lambda _: None) -> GuestImage:
    """Build the image unless it is there already, and make it the current one.

    Raises `UserError` when something has to be installed first, `RunError` when a tool fails.
    """
    cache = default_cache() if cache is None else cache
    try:
        cache.mkdir(parents=True, exist_ok=True)
        ingredients = gather(cache / "downloads")
        key = build_key(ingredients.fingerprints)
        if not (cache / key / "manifest.json").exists():
            _build(ingredients, key, cache, progress)
        _point(cache, key)
    except OSError as error:
        where = error.filename or cache
        raise UserError(f"guest image: {where}: {error.strerror}: expected a folder to write to") from error
    return _read(cache / key)


def current(cache: Path | None = None) -> GuestImage:
    """Return the image that was built last; raises `UserError` when there is none."""
    cache = default_cache() if cache is None else cache
    try:
        return _read((cache / "current").resolve(strict=True))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"guest image: none in {cache}: expected one to be built: {_BUILD}") from error


def _build(ingredients: Ingredients, key: str, cache: Path, progress: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory(prefix="building-", dir=cache) as scratch_name:
        scratch = Path(scratch_name)
        ready = scratch / "ready"
        ready.mkdir(mode=0o755)
        parts = scratch / "parts"
        parts.mkdir()
        kernel, initramfs = make(ingredients, cache / "downloads", parts, progress)
        outputs = {"vmlinuz": kernel, "initramfs": initramfs}
        for name, data in outputs.items():
            (ready / name).write_bytes(data)
        manifest = {
            "key": key,
            "floor_mib": FLOOR_MIB,
            "versions": ingredients.versions,
            "ingredients": ingredients.fingerprints,
            "outputs": {name: {"sha256": sha256(data), "bytes": len(data)} for name, data in outputs.items()},
        }
        (ready / "manifest.json").write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", encoding="ascii")
        place = cache / key
        try:
            ready.rename(place)
        except OSError:  # another build was quicker, or one of an older time is incomplete
            if not (place / "manifest.json").exists():
                shutil.rmtree(place)
                ready.rename(place)


def _point(cache: Path, key: str) -> None:
    link = cache / "current"
    if link.is_symlink() and link.readlink() == Path(key):
        return
    new = cache / f"current-{os.getpid()}"
    new.unlink(missing_ok=True)
    new.symlink_to(key)
    new.replace(link)


def _read(folder: Path) -> GuestImage:
    manifest = json.loads((folder / "manifest.json").read_text(encoding="ascii"))
    for name, output in manifest["outputs"].items():
        if (folder / name).stat().st_size != output["bytes"]:
            raise UserError(f"guest image {folder}: {name} is damaged: expected it removed, then {_BUILD}")
    ours = own_fingerprints()
    if others := [name for name, value in ours.items() if manifest["ingredients"].get(name) != value]:
        raise UserError(f"guest image {folder}: {others[0]} is that of another release: expected our own: {_BUILD}")
    return GuestImage(
        folder, folder / "vmlinuz", folder / "initramfs", manifest["key"], manifest["floor_mib"], manifest["versions"]
    )
