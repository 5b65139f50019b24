"""The connection between a rank on this machine and the process manager in its agent."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, cast

from node_agent.drivers.pmi.server import Barrier, PmiServer
from node_agent.drivers.pmi.wire import LineReader, PmiError
from testbed.bus.messages import RankKeys
from testbed.bus.mpi_keys import BadKeysError

_PEER = struct.Struct("3i")  # process, user, group


class PmiStore(Protocol):
    """A process that outlives a killed agent (`procs.keeper`): it has the connection, and passes requests on."""

    def store(self, channel: str, fd: int) -> None:
        """Keep a copy of the connection `pmi`, and read requests from it."""

    def answer(self, took: int, text: str) -> None:
        """Remove `took` bytes of the requests, send `text`, and note the state of the server, all or nothing."""


class PmiLink(asyncio.Protocol):
    """The connection of one rank: the first that is accepted, and no other.

    `on_barrier` is called when the rank waits in a barrier, `on_trouble` for a message that no rank would send. With a
    `store` the connection is handed to it, and `data_received` is called for requests from there.
    """

    def __init__(
        self, server: PmiServer, on_barrier: Callable[[Barrier], None], on_trouble: Callable[[str], None],
        store: PmiStore | None = None,
    ) -> None:  # fmt: skip
        self.server = server
        self._store = store
        self._taken = False  # by a rank
        self._on_barrier = on_barrier
        self._on_trouble = on_trouble
        self._lines = LineReader()
        self._listener: asyncio.Server | None = None
        self._path: Path | None = None
        self._is_program: Callable[[int], bool] = lambda _pid: True
        self._transport: asyncio.Transport | None = None

    async def listen(self, path: Path, is_program: Callable[[int], bool]) -> None:
        """Wait for the rank at a socket of this user; `is_program` must accept its process id."""
        self._path, self._is_program = path, is_program
        path.unlink(missing_ok=True)  # noqa: ASYNC240  # a socket in the agent's own folder
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_unix_server(lambda: self, str(path), start_serving=False)
        path.chmod(0o600)  # noqa: ASYNC240  # as above
        await self._listener.start_serving()

    def again(self, requests: bytes) -> None:
        """Continue to serve a rank whose connection is in the store, from these unanswered requests on."""
        self._taken = True
        if self.server.waiting:  # the barrier may not have been reported
            self._on_barrier(self.server.barrier())
        self.data_received(requests)

    async def take(self, end: socket.socket) -> None:
        """Serve a rank that inherits the other end of a pair of sockets."""
        await asyncio.get_running_loop().connect_accepted_socket(lambda: self, end)

    def pass_barrier(self, session: str, number: int, keys: Iterable[RankKeys], *, last: bool) -> None:
        """See `PmiServer.pass_barrier`."""
        answer = self.server.pass_barrier(session, number, keys, last=last)
        if answer is not None:
            self._say(answer, 0)

    def close(self) -> None:
        """Hang up and stop listening."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        peer = transport.get_extra_info("socket")
        pid, user, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if self._taken or user != os.geteuid() or not self._is_program(pid):
            transport.abort()  # type: ignore[attr-defined]  # a socket's transport has it
            return
        self._taken = True
        if self._store is None:
            self._transport = cast("asyncio.Transport", transport)
        else:
            self._store.store("pmi", peer.fileno())
            transport.abort()  # type: ignore[attr-defined]  # before anything is read here; the connection lives on

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        try:
            for line in self._lines.feed(data):
                answer = self.server.take(line)
                self._say("" if answer is None or isinstance(answer, Barrier) else answer, len(line) + 1)
                if isinstance(answer, Barrier):
                    self._on_barrier(answer)
        except (PmiError, BadKeysError) as error:
            self.close()
            self._on_trouble(str(error))

    def pause_writing(self) -> None:
        """Stop reading from a rank that does not read its answers: they would fill this process's memory."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read again."""
        if self._transport is not None:
            self._transport.resume_reading()

    def _say(self, answer: str, took: int) -> None:
        """Send an answer, if there is one, to a request of `took` bytes."""
        line = f"{answer}\n" if answer else ""
        if self._store is not None:
            self._store.answer(took, line)
        elif self._transport is not None and line:
            self._transport.write(line.encode())
