"""The host's end of a guest's control channel: a UNIX socket, or the pseudo-terminal that Xen's consoles are."""

from __future__ import annotations

import asyncio
import os
import stat
import tty
from pathlib import Path
from typing import Protocol


class Hangup(Protocol):
    """A connection that can be written to and closed."""

    @property
    def unsent_bytes(self) -> int:
        """The number of written bytes that the other end has not read yet."""

    def write(self, data: bytes) -> None:
        """Write, now or when the other end reads."""

    def close(self) -> None:
        """Hang up, for reading, too; unsent bytes are lost."""


class Socket:
    """See `Hangup`: the writer of a socket's stream."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer  # kept, because an unreferenced writer closes its transport

    @property
    def unsent_bytes(self) -> int:
        """See `Hangup.unsent_bytes`."""
        return self._writer.transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        """See `Hangup.write`."""
        self._writer.write(data)

    def close(self) -> None:
        """See `Hangup.close`."""
        self._writer.transport.abort()  # data that the guest has not read would keep it open


class Terminal:
    """See `Hangup`: a pseudo-terminal, with one transport for each direction. Other programs may print on it, too."""

    def __init__(self, reading: asyncio.ReadTransport, writing: asyncio.WriteTransport) -> None:
        self._reading = reading
        self._writing = writing

    def write(self, data: bytes) -> None:
        """See `Hangup.write`."""
        self._writing.write(data)

    @property
    def unsent_bytes(self) -> int:
        """See `Hangup.unsent_bytes`."""
        return self._writing.get_write_buffer_size()

    def close(self) -> None:
        """See `Hangup.close`."""
        self._reading.close()
        self._writing.abort()  # data that the guest has not read would keep it open


async def connect(path: Path, limit_bytes: int) -> tuple[asyncio.StreamReader, Hangup]:
    """Open a guest's control channel; raises `OSError` while there is none."""
    if stat.S_ISCHR((await asyncio.to_thread(path.stat)).st_mode):
        return await _open_terminal(path, limit_bytes)
    reader, writer = await asyncio.open_unix_connection(str(path), limit=limit_bytes)
    return reader, Socket(writer)


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
    return reader, Terminal(reading, writing)
