"""The guest image of virtual machines: built once from parts of this system, and identified by its ingredients.

`testbed.host.guest_image` has its location. The same ingredients give the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from testbed.errors import UserError
from testbed.host import guest_image
from testbed.host.guest_image import GuestImage, GuestImageError, default_cache, read
from testbed.lab.guest_image.recipe import Ingredients, gather, make
from testbed.lab.guest_image.recipe_tools import sha256

FLOOR_MIB = 128  # measured: the least memory in which the guest boots and a rank of `patterns` among four runs


def build_key(fingerprints: dict[str, str]) -> str:
    """Return the key of an image with these ingredients: 20 hexadecimal digits."""
    return sha256(json.dumps(fingerprints, sort_keys=True).encode())[:20]


def build(cache: Path | None = None, progress: Callable[[str], None] = lambda _: None) -> GuestImage:
    """Build the image unless it exists already, and make it the current one.

    Raises `UserError` when a tool or a package is missing, `RunError` when a tool fails.
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
    with _user_errors():
        return read(cache / key)


def current(cache: Path | None = None) -> GuestImage:
    """Return the image that was built last; raises `UserError` when there is none."""
    with _user_errors():
        return guest_image.current(cache)


@contextlib.contextmanager
def _user_errors() -> Iterator[None]:
    try:
        yield
    except GuestImageError as error:
        raise UserError(str(error)) from error


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
            "waits": True,
            "versions": ingredients.versions,
            "ingredients": ingredients.fingerprints,
            "outputs": {name: {"sha256": sha256(data), "bytes": len(data)} for name, data in outputs.items()},
        }
        (ready / "manifest.json").write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", encoding="ascii")
        place = cache / key
        try:
            ready.rename(place)
        except OSError:  # another build was faster, or an incomplete one is in place
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
