"""MPICH in this Python environment: the paths of the header and the library in the wheel."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path


class MpichError(Exception):
    """MPICH is not installed or incomplete; the caller reports the error to the user."""


@dataclass(frozen=True, slots=True)
class Mpich:
    """Version of the wheel, and paths of its files."""

    version: str
    header: Path
    library: Path


def mpich() -> Mpich:
    """Find the installed wheel; raises `MpichError` when it is missing or lacks a file."""
    try:
        wheel = metadata.distribution("mpich")
    except metadata.PackageNotFoundError as error:
        raise MpichError("no mpich in this Python environment: expected pip install mpich") from error
    found = {file.name: Path(str(file.locate())).resolve() for file in wheel.files or ()}
    for name in ("mpi.h", "libmpi.so.12"):
        if name not in found or not found[name].is_file():
            raise MpichError(f"mpich {wheel.version} has no {name}: expected pip install mpich")
    return Mpich(wheel.version, found["mpi.h"], found["libmpi.so.12"])
