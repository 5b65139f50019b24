"""The agent's end of a guest's control channel."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import cast

from node_agent.drivers.protocol import DriverError
from node_agent.guests.channel import ChannelError, Decoder, Message, encode

LONGEST_PATH = 99  # a socket's address holds 107 bytes; some systems hold fewer
_PEER = struct.Struct("3i")  # process, user, group


class _Connection(asyncio.Protocol):
    def __init__(self, link: GuestLink) -> None:
        self._link = link
        self._decoder = Decoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._link.connected(self, cast("asyncio.Transport", transport))

    def data_received(self, data: bytes) -> None:
        for message in self._decoder.feed(data):
            self._link.heard(self, message)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._link.lost(self)


class GuestLink:
    """A UNIX socket for one program: the first process of this user that connects; others are turned away.

    `on_message` gets its messages and an error for each malformed one, `on_closed` is called when it hangs up. `pid` is
    the program's process id, as reported by the kernel. `joined` is set while one is connected.
    """

    def __init__(
        self, path: Path, on_message: Callable[[Message | ChannelError], None], on_closed: Callable[[], None]
    ) -> None:
        if len(os.fsencode(path)) > LONGEST_PATH:
            raise DriverError(f"control socket {path}: expected a path of at most {LONGEST_PATH} bytes")
        self.path = path
        self.pid: int | None = None
        self._on_message = on_message
        self._on_closed = on_closed
        self._server: asyncio.Server | None = None
        self._connection: _Connection | None = None
        self._transport: asyncio.Transport | None = None
        self._parked: asyncio.Future[None] | None = None
        self.joined = asyncio.Event()

    @property
    def open(self) -> bool:
        """Whether a program is connected."""
        return self._transport is not None

    async def listen(self) -> None:
        """Wait for the program."""
        self.path.unlink(missing_ok=True)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Connection(self), str(self.path), start_serving=False)
        self.path.chmod(0o600)
        await self._server.start_serving()

    def send(self, kind: str, **fields: object) -> None:
        """Send one message; raises `DriverError` if no program is there."""
        if self._transport is None:
            raise DriverError(f"cannot send {kind}: no program is connected")
        self._transport.write(encode(kind, **fields))

    async def park(self) -> None:
        """Have the program hang up; it reconnects after the next `listen`. `on_closed` is not called."""
        self._stop_listening()
        self._parked = asyncio.get_running_loop().create_future()
        self.send("park")
        await self._parked

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def close(self) -> None:
        """Hang up and stop listening; `on_closed` is not called."""
        self._on_closed = lambda: None
        self._stop_listening()
        if self._transport is not None:
            self._transport.abort()
        self.path.unlink(missing_ok=True)

    def connected(self, connection: _Connection, transport: asyncio.Transport) -> None:
        """Take a connection, or turn it away."""
        peer = transport.get_extra_info("socket")
        pid, user, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if self._connection is not None or user != os.geteuid():
            transport.abort()
            return
        self._connection, self._transport, self.pid = connection, transport, pid
        self._parked = None
        self.joined.set()

    def heard(self, connection: _Connection, message: Message | ChannelError) -> None:
        """Pass a message on."""
        if connection is self._connection:
            self._on_message(message)

    def lost(self, connection: _Connection) -> None:
        """Note that the program hung up."""
        if connection is self._connection:
            self._transport = None
            self.joined.clear()
            if self._parked is None:
                self._on_closed()
            else:
                self._connection = None
                if not self._parked.done():  # the waiting task may have been cancelled
                    self._parked.set_result(None)
