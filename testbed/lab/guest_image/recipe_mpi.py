"""Finds the shared libraries that programs of the guest image need, including those of MPICH."""

from __future__ import annotations

import re
from pathlib import Path

from testbed.errors import RunError
from testbed.lab.guest_image.recipe_tools import run

_LOADER = re.compile(r"^\s*(/\S*/ld-linux\S*) \(", re.MULTILINE)
_LIBRARY = re.compile(r"^\s*(\S+) => (\S+) \(", re.MULTILINE)
_MISSING = re.compile(r"^\s*(\S+) => not found", re.MULTILINE)


def closure(binaries: tuple[Path, ...]) -> tuple[Path, dict[str, Path]]:
    """Return the dynamic loader and, by their names, all libraries that binaries need; raises `RunError`."""
    loader: Path | None = None
    libraries: dict[str, Path] = {}
    for binary in binaries:
        text = run(["ldd", str(binary)])
        if missing := _MISSING.findall(text):
            raise RunError(f"{binary} needs {', '.join(missing)}: expected on this system")
        if found := _LOADER.search(text):
            loader = Path(found[1])
        libraries |= {name: Path(path) for name, path in _LIBRARY.findall(text)}
    if loader is None:
        raise RunError(f"{binaries[0]}: expected a dynamic program")
    return loader, {name: path for name, path in libraries.items() if not name.startswith("/")}
