"""The host's end of a guest's line: a UNIX socket, or the pseudo-terminal that Xen's consoles are."""

from __future__ import annotations

import asyncio
import os
import stat
import tty
from pathlib import Path
from typing import Protocol


class Hangup(Protocol):
    """What can be written to, and closed."""

    def write(self, data: bytes) -> None:
        """Write, now or when the other end takes it."""

    def close(self) -> None:
        """Hang up, for reading, too."""


class _Terminal:
    """A pseudo-terminal: one transport for each direction."""

    def __init__(self, reading: asyncio.ReadTransport, writing: asyncio.WriteTransport) -> None:
        self._reading = reading
        self._writing = writing

    def write(self, data: bytes) -> None:
        self._writing.write(data)

    def close(self) -> None:
        self._reading.close()
        self._writing.abort()  # what a guest did not take yet would keep it open


async def connect(path: Path, limit_bytes: int) -> tuple[asyncio.StreamReader, Hangup]:
    """Open a guest's line; raises `OSError` while it is not there."""
    if stat.S_ISCHR((await asyncio.to_thread(path.stat)).st_mode):
        return await _open_terminal(path, limit_bytes)
    return await asyncio.open_unix_connection(str(path), limit=limit_bytes)


async def _open_terminal(path: Path, limit_bytes: int) -> tuple[asyncio.StreamReader, Hangup]:
    loop = asyncio.get_running_loop()
    descriptor = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        tty.setraw(descriptor)  # else orders come back as an echo
        reader = asyncio.StreamReader(limit=limit_bytes)
        protocol = asyncio.StreamReaderProtocol(reader)
        reading, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(os.dup(descriptor), "rb", 0))
        writing, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(os.dup(descriptor), "wb", 0))
    finally:
        os.close(descriptor)
    return reader, _Terminal(reading, writing)
