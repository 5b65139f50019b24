"""Saved guests as files: flushed to the disk while the hypervisor writes them, and with a digest."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import xxhash

from node_agent.drivers.protocol import SaveReport

_BLOCK = 4 << 20
_SYNC_EVERY_S = 0.1


@contextlib.asynccontextmanager
async def written_back(path: Path) -> AsyncIterator[None]:
    """Flush `path` to the disk while the block writes to it, so that little is left to flush at its end."""
    follower = asyncio.create_task(_follow(path), name=f"write back {path.name}")
    try:
        yield
    finally:
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)


async def _follow(path: Path) -> None:
    while True:
        await asyncio.sleep(_SYNC_EVERY_S)
        with contextlib.suppress(OSError):  # it may not be there yet
            await asyncio.to_thread(sync, path)


async def seal(path: Path, written_s: float) -> SaveReport:
    """Digest an image (XXH3-128, hexadecimal) that was written in `written_s`, and flush all of it to the disk."""
    begin_s = time.monotonic()
    (size, digest), *_ = await asyncio.gather(
        asyncio.to_thread(_digest, path), asyncio.to_thread(sync, path), asyncio.to_thread(sync, path.parent)
    )
    return SaveReport(size, digest, 0.0, written_s, time.monotonic() - begin_s)


def _digest(path: Path) -> tuple[int, str]:
    state = xxhash.xxh3_128()
    size = 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            state.update(block)
            size += len(block)
    return size, state.hexdigest()


def sync(path: Path) -> None:
    """Make a file or folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
