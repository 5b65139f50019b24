"""The image of nested Xen nodes: built once from Debian's packages, and identified by its ingredients.

The cache has a folder for the image, named by the key of its ingredients. The folder also has the states of machines
that were saved after their boot. The link `current` points to the image that was built or requested last. Older images
are removed when another is built.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import UserError
from testbed.host.locks import locked
from testbed.lab.box.xen import recipe
from testbed.lab.box.xen.packages import gather
from testbed.lab.guest_image.recipe_debian import Package
from testbed.lab.guest_image.recipe_tools import sha256

CACHE = Path("/var/cache/dfrs-testbed/xen-node")
_KEPT = frozenset({"downloads", "lock", "current"})
_WHOLE = "manifest.json"  # written last


@dataclass(frozen=True, slots=True)
class XenImage:
    """An image on disk: hypervisor, kernel, initramfs and disk of the control domain, and its ssh keys."""

    folder: Path

    @property
    def hypervisor(self) -> Path:
        """The hypervisor, Xen."""
        return self.folder / "xen"

    @property
    def kernel(self) -> Path:
        """The control domain's kernel."""
        return self.folder / "vmlinuz"

    @property
    def initramfs(self) -> Path:
        """The control domain's initramfs."""
        return self.folder / "initramfs"

    @property
    def disk(self) -> Path:
        """The control domain's original disk, which is never written to."""
        return self.folder / "dom0.img"

    @property
    def key(self) -> Path:
        """The private key for ssh logins."""
        return self.folder / "key"

    @property
    def known_hosts(self) -> Path:
        """The file with the host key, in the format of ssh's known_hosts."""
        return self.folder / "known_hosts"


def build_key(packages: Sequence[Package], version: int, files: Sequence[Path]) -> str:
    """Return the key of an image with these ingredients: 20 hexadecimal digits."""
    ingredients = {
        "recipe": version,
        "packages": sorted((package.name, package.version, package.sha256) for package in packages),
        "files": {path.name: sha256(path) for path in files},
    }
    return sha256(json.dumps(ingredients, sort_keys=True).encode())[:20]


def build(say: Callable[[str], None], cache: Path = CACHE) -> XenImage:
    """Build the image unless it exists already, and make it the current one.

    Raises `UserError` when a tool or a package is missing, `RunError` when a tool fails.
    """
    recipe.check_tools()
    ingredients = gather()
    key = build_key(ingredients.packages, recipe.VERSION, sorted(recipe.FILES.iterdir()))
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with locked(cache / "lock"):
            if not (cache / key / _WHOLE).exists():
                remove_others(cache, key)  # first, to free disk space for the new image
                scratch = cache / f"building-{key}"
                ready = scratch / "ready"
                ready.mkdir(parents=True)
                recipe.make(ingredients, cache / "downloads", scratch, ready, say)
                versions = {package.name: package.version for package in ingredients.packages}
                (ready / _WHOLE).write_text(json.dumps(versions, indent=2) + "\n", encoding="ascii")
                ready.rename(cache / key)
                shutil.rmtree(scratch)
            _point(cache, key)
    except OSError as error:
        raise UserError(f"xen node: {error.filename or cache}: {error.strerror}") from error
    return XenImage(cache / key)


def current(cache: Path = CACHE) -> XenImage:
    """Return the image that was built last; raises `UserError` when there is none."""
    try:
        folder = (cache / "current").resolve(strict=True)
    except OSError as error:
        raise UserError(f"xen node: no image in {cache}: expected `testbed lab up` to have built one") from error
    return XenImage(folder)


def remove_others(cache: Path, key: str) -> None:
    """Remove older images and leftovers of killed builds; the caller holds the lock."""
    for path in cache.iterdir():
        if path.is_symlink() and path.name not in _KEPT:
            path.unlink()
        elif path.name not in _KEPT | {key} or (path.name == key and not (path / _WHOLE).exists()):
            shutil.rmtree(path)


def _point(cache: Path, key: str) -> None:
    new = cache / f"current-{os.getpid()}"
    new.unlink(missing_ok=True)
    new.symlink_to(key)
    new.replace(cache / "current")
