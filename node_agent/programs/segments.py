"""Shared memory that MPI creates for a rank; a killed rank leaves it behind."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path

SEGMENTS = Path("/dev/shm")  # noqa: S108  # where `shm_open` of the C library creates files
_PREFIX = "mpich_"
_log = logging.getLogger(__name__)
_CLOCK_S = 1.0  # files bear the time of the kernel's last tick, which is a little earlier than that of the clock


def is_segment(path: Path) -> bool:
    """Whether a file is shared memory of MPI, by its folder and its name."""
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


def remove_segments(segments: Iterable[Path]) -> None:
    """Remove shared memory files of MPI; a file that another user has put in their place stays, which is logged."""
    for path in segments:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s was not removed: %s", path, error.strerror)


def abandoned_segments(since_unix_s: float = 0.0) -> set[Path]:
    """Return this user's segments that no process uses, created since a time of the wall clock.

    A rank that was killed while MPI started has reported no segments, and its mappings are gone. A process first opens
    a segment and then maps it. So open files are read before mappings: a segment that has an owner is found in one of
    the two.
    """
    found: set[Path] = set()
    with contextlib.suppress(OSError):
        for path in filter(is_segment, SEGMENTS.iterdir()):
            with contextlib.suppress(OSError):
                about = path.stat()
                if about.st_uid == os.geteuid() and about.st_ctime >= since_unix_s - _CLOCK_S:
                    found.add(path)
    if found:
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                found -= _opened_by(process)
                found -= segments_of(int(process.name))
    return found


def _opened_by(process: Path) -> set[Path]:
    found: set[Path] = set()
    with contextlib.suppress(OSError):  # it has ended, or is another user's, who cannot open segments of this one
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(descriptor.readlink())
    return found
