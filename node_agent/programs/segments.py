"""Shared memory that MPI makes for a rank: a rank that is killed leaves it behind."""

from __future__ import annotations

import contextlib
from pathlib import Path

SEGMENTS = Path("/dev/shm")  # noqa: S108  # where the C library puts what `shm_open` makes
_PREFIX = "mpich_"


def is_segment(path: Path) -> bool:
    """Whether a file is one of MPI's shared memory, by where it is and its name."""
    return path.parent == SEGMENTS and path.name.startswith(_PREFIX)


def segments_of(pid: int) -> set[Path]:
    """Return the files of MPI's shared memory that a process has mapped; none if it has gone."""
    found: set[Path] = set()
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            path = Path(line.split(maxsplit=5)[-1])
            if is_segment(path):
                found.add(path)
    return found
