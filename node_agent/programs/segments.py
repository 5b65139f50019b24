"""Shared memory that MPI makes for a rank: a rank that is killed leaves it behind."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path

SEGMENTS = Path("/dev/shm")  # noqa: S108  # where the C library puts what `shm_open` makes
_PREFIX = "mpich_"
_log = logging.getLogger(__name__)
_CLOCK_S = 1.0  # files bear the time of the kernel's last tick, which is a little earlier than that of the clock


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


def remove_segments(segments: Iterable[Path]) -> None:
    """Remove files of MPI's shared memory; what another user has put in their place stays, which is logged."""
    for path in segments:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s stays: %s", path, error.strerror)


def abandoned_segments(since_unix_s: float = 0.0) -> set[Path]:
    """Return this user's segments that no process has, made since a time of the wall clock.

    A rank that was killed while MPI started has reported none, and its own files cannot be asked for any more. A
    process first opens a segment and then maps it, so open files are read before what is mapped: a segment that has an
    owner is found in one of the two.
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
