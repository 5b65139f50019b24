"""The share of a file in the kernel's page cache, and the eviction of a file from it."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from pathlib import Path

_CHUNK = 1 << 30  # mapped at a time: a result of 256 KiB
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)


def drop_cached(path: Path) -> None:
    """Evict a file from the page cache, so that the next read is from its disk; raises `OSError`.

    No effect on a tmpfs, whose files exist in the page cache alone. Pages that are not on the disk yet, or that are
    mapped, would stay, so the file is made durable first.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def cached_frac(path: Path) -> float | None:
    """Return the part of a file's pages that are in memory; None if that is unknown, or the file has no pages.

    The kernel reports it only to users who may write to the file (mincore(2)).
    """
    with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        pages = there = 0
        for offset in range(0, size, _CHUNK):
            length = min(_CHUNK, size - offset)
            in_chunk = -(-length // mmap.PAGESIZE)
            pages += in_chunk
            there += _resident(file.fileno(), offset, length, in_chunk)
        return there / pages if pages else None
    return None


def _resident(descriptor: int, offset: int, length: int, pages: int) -> int:
    # private, and writable only so that its address can be taken
    with mmap.mmap(descriptor, length, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE,
                   offset=offset) as mapped:  # fmt: skip
        begin = ctypes.c_char.from_buffer(mapped)
        told = ctypes.create_string_buffer(pages)
        try:
            if _libc.mincore(ctypes.addressof(begin), length, told) != 0:
                raise OSError(ctypes.get_errno(), "mincore")
        finally:
            del begin  # else the mapping cannot be closed
        return sum(byte & 1 for byte in told.raw)
