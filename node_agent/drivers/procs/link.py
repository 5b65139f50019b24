"""The agent's end of a guest's control channel."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

from node_agent.drivers.procs.channel import Channel
from node_agent.drivers.protocol import DriverError
from node_agent.guests.channel import ChannelError, Decoder, Message, encode

LONGEST_PATH = 99  # a socket's address holds 107 bytes; some systems hold fewer
_BACKLOG = 16


class GuestLink:
    """A UNIX socket for one program: the first process of this user that connects; others are rejected.

    `on_message` gets its messages and an error for each malformed one, `on_closed` is called when it hangs up,
    `on_joined` gets the descriptor of a new connection. `pid` is the program's process id, as reported by the kernel.
    `joined` is set while a program is connected.
    """

    def __init__(
        self, path: Path, on_message: Callable[[Message | ChannelError], None], on_closed: Callable[[], None],
        on_joined: Callable[[int], None] = lambda _fd: None,
    ) -> None:  # fmt: skip
        if len(os.fsencode(path)) > LONGEST_PATH:
            raise DriverError(f"control socket {path}: expected a path of at most {LONGEST_PATH} bytes")
        self.path = path
        self.pid: int | None = None
        self._on_message = on_message
        self._on_closed = on_closed
        self._on_joined = on_joined
        self._listener: socket.socket | None = None
        self._decoder = Decoder()
        self._channel: Channel | None = None
        self._used = False  # one program has connected since `listen`, and may have hung up
        self._parked: asyncio.Future[None] | None = None
        self.joined = asyncio.Event()

    @property
    def open(self) -> bool:
        """Whether a program is connected."""
        return self._channel is not None

    async def listen(self) -> None:
        """Wait for the program."""
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._listener.bind(str(self.path))
        self.path.chmod(0o600)
        self._listener.listen(_BACKLOG)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def send(self, kind: str, **fields: object) -> None:
        """Send one message; raises `DriverError` if no program is there."""
        if self._channel is None:
            raise DriverError(f"cannot send {kind}: no program is connected")
        self._channel.write(encode(kind, **fields))

    async def park(self) -> None:
        """Have the program hang up; it reconnects after the next `listen`. `on_closed` is not called."""
        self._stop_listening()
        self._parked = asyncio.get_running_loop().create_future()
        self.send("park")
        await self._parked

    def again(self, fd: int, pid: int, heard: bytes) -> None:
        """Take over the connection of an earlier agent, on which `heard` has arrived meanwhile."""
        self._used, self.pid = True, pid
        self._channel = Channel(socket.socket(fileno=fd), self._heard, self._lost)
        self.joined.set()
        self._heard(heard)
        self._channel.start()

    def abort(self) -> None:
        """End the connection; the program notices that."""
        if self._channel is not None:
            self._channel.abort()

    def close(self) -> None:
        """Hang up and stop listening; `on_closed` is not called."""
        self._on_closed = lambda: None
        self._stop_listening()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self.path.unlink(missing_ok=True)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self) -> None:
        """Accept a connection, or reject it."""
        if self._listener is None:
            return
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has gone already
            return
        channel = Channel(connection, self._heard, self._lost)
        if self._used or channel.user != os.geteuid():
            channel.close()
            return
        self._used, self._channel, self.pid, self._decoder = True, channel, channel.pid, Decoder()
        self._parked = None
        self._on_joined(channel.fileno())
        channel.start()
        self.joined.set()

    def _heard(self, data: bytes) -> None:
        for message in self._decoder.feed(data):
            self._on_message(message)

    def _lost(self) -> None:
        """Note that the program hung up."""
        self._channel = None
        self.joined.clear()
        if self._parked is None:
            self._on_closed()
            return
        self._used = False
        if not self._parked.done():  # the waiting task may have been cancelled
            self._parked.set_result(None)
