"""Locks on files and folders: one process or thread at a time; a lock ends with its holder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def try_lock(descriptor: int) -> bool:
    """Lock an open file or folder until it is closed; return False if it is locked already. Raises `OSError`."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(path: Path, *, folder: bool = False) -> int:
    """Wait for the lock of a lock file, which is made, or of a folder; return its descriptor. Raises `OSError`."""
    flags = os.O_RDONLY | os.O_DIRECTORY if folder else os.O_WRONLY | os.O_CREAT
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a lock file inside the block."""
    descriptor = lock(path)
    try:
        yield
    finally:
        os.close(descriptor)
