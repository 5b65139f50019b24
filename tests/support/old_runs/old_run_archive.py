"""Archives of old run directories: written once by `cut.py`, unpacked by the tests."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from support import archives

FOLDER = Path(__file__).parents[2] / "old_runs"
RUNS = ("processes", "kvm", "xen")


def archive(name: str) -> Path:
    """Return the archive of an old run."""
    return FOLDER / f"{name}.tar.xz"


def unpack(name: str, into: Path) -> Path:
    """Unpack an old run below a folder, and return its run directory.

    Each test gets a separate copy, because commands may write into a run directory.
    """
    archives.unpack(archive(name), into)
    (run,) = into.iterdir()
    return run


def pack(run: str, files: dict[str, bytes], target: Path) -> None:
    """Write the files of the run directory `run` as an archive; raises `FileExistsError` if there is one."""
    with target.open("xb") as file, tarfile.open(fileobj=file, mode="w:xz", preset=9) as packed:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(f"{run}/{name}")
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
