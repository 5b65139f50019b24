"""The guest image's parts from this Python environment's MPICH, and the libraries that it needs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from testbed.errors import RunError, UserError
from testbed.lab.guest_image.recipe_tools import run

_LOADER = re.compile(r"^\s*(/\S*/ld-linux\S*) \(", re.MULTILINE)
_LIBRARY = re.compile(r"^\s*(\S+) => (\S+) \(", re.MULTILINE)
_MISSING = re.compile(r"^\s*(\S+) => not found", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mpich:
    """Paths of the wheel's files."""

    version: str
    header: Path
    library: Path


def mpich() -> Mpich:
    """Find the installed wheel; raises `UserError` when it is missing or lacks a file."""
    try:
        wheel = metadata.distribution("mpich")
    except metadata.PackageNotFoundError as error:
        raise UserError("guest image: no mpich in this Python environment: expected pip install mpich") from error
    found = {file.name: Path(str(file.locate())).resolve() for file in wheel.files or ()}
    for name in ("mpi.h", "libmpi.so.12"):
        if name not in found or not found[name].is_file():
            raise UserError(f"guest image: mpich {wheel.version} has no {name}: expected pip install mpich")
    return Mpich(wheel.version, found["mpi.h"], found["libmpi.so.12"])


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
