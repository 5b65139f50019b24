"""This Python environment's MPICH: where the wheel has its header and its library."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path


class MpichError(Exception):
    """There is none, or a file of it is missing; the caller reports it to the user."""


@dataclass(frozen=True, slots=True)
class Mpich:
    """Paths of the wheel's files."""

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
