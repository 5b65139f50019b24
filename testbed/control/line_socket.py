"""Unix sockets on which a controller answers its machine's users: one request and one answer, each a line of JSON.

The kernel enforces by the socket's mode who can connect, and reports the process and the user at the other end. The
address of a Unix socket has at most 107 bytes, and folders may have longer paths; so both ends open the folder, and
name the socket by the descriptor (`/proc/self/fd/N/NAME`).
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from testbed.errors import RunError

REQUEST_S = 10.0  # timeout, from the connection to the complete request
CLOSE_S = 5.0  # timeout for answers in transit when the run ends
MOST_BYTES = 16 << 10  # of a line, with its line break
MOST_CLIENTS = 16
MOST_OF_USER = 8  # so that no user keeps the others out
_RETRY_S = 1.0
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid, of SO_PEERCRED
_log = logging.getLogger(__name__)


class NoControllerError(RunError):
    """No controller listens on a socket."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end, and its user."""

    pid: int
    uid: int


@dataclass(frozen=True, slots=True)
class Counter:
    """The handlers of requests at a socket.

    `answer` returns the response line to a request. `refuse` returns the response line to a refused request, with the
    reason. `may` returns the reason for which a peer has no access, or an empty text. `of` describes the requests, for
    messages.
    """

    answer: Callable[[bytes, Peer], Awaitable[bytes]]
    refuse: Callable[[str], bytes]
    may: Callable[[Peer], str]
    of: str


@contextlib.asynccontextmanager
async def answering(counter: Counter, path: Path, mode: int, group: int | None = None) -> AsyncIterator[None]:
    """Serve a Unix socket with this mode, and this group if given; raises `OSError` if it cannot be created."""
    listener = await asyncio.to_thread(_listen, path, mode, group)
    try:
        async with _Serving(counter, listener):
            yield
    finally:
        listener.close()
        with contextlib.suppress(OSError):
            await asyncio.to_thread(path.unlink)


class _Serving:
    """Serves clients at a listening socket, while it is entered."""

    def __init__(self, counter: Counter, listener: socket.socket) -> None:
        self._counter = counter
        self._listener = listener
        self._clients: set[asyncio.Task[None]] = set()
        self._of_user: collections.Counter[int] = collections.Counter()
        self._closed = False

    async def __aenter__(self) -> None:
        self._listen()

    def _listen(self) -> None:
        if not self._closed:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    async def __aexit__(self, *_error: object) -> None:
        """Wait briefly for answers in transit; report the end of the run to the other clients."""
        self._closed = True
        asyncio.get_running_loop().remove_reader(self._listener)
        if self._clients:
            await asyncio.wait(self._clients, timeout=CLOSE_S)
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    def _accept(self) -> None:
        """Accept one connection."""
        try:
            client, _ = self._listener.accept()
        except OSError as error:  # for example too many open files: a retry would fail at once
            _log.warning("%s: no request was taken: %s", self._counter.of, error.strerror)
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._listener)
            loop.call_later(_RETRY_S, self._listen)
            return
        client.setblocking(False)  # its parameter has no keyword
        task = asyncio.create_task(self._serve(client), name=self._counter.of)
        self._clients.add(task)
        task.add_done_callback(partial(self._forget, client))

    def _forget(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        self._clients.discard(task)
        client.close()

    async def _serve(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            answer = await self._answer(client)
        except asyncio.CancelledError:
            answer = self._counter.refuse("the run is over")
        with contextlib.suppress(OSError):  # the client is gone; its request stays in force
            async with asyncio.timeout(REQUEST_S):
                await loop.sock_sendall(client, answer + b"\n")

    async def _answer(self, client: socket.socket) -> bytes:
        peer = _peer(client)
        if why_not := self._counter.may(peer):
            return self._counter.refuse(why_not)
        if len(self._clients) > MOST_CLIENTS:
            return self._counter.refuse(f"{MOST_CLIENTS} other commands wait for this run: end some")
        if self._of_user[peer.uid] >= MOST_OF_USER:
            return self._counter.refuse(f"{MOST_OF_USER} other commands of this user wait for this run: end some")
        self._of_user[peer.uid] += 1
        try:
            return await self._hear(client, peer)
        finally:
            self._of_user[peer.uid] -= 1

    async def _hear(self, client: socket.socket, peer: Peer) -> bytes:
        try:
            async with asyncio.timeout(REQUEST_S):
                line = await _line(client)
        except (ValueError, OSError) as error:
            return self._counter.refuse(f"not a request: {error or 'nothing came'}")
        return await self._counter.answer(line, peer)


async def _line(client: socket.socket) -> bytes:
    """Return a client's data up to a line break or the end; raises `ValueError` if it is too long."""
    loop, line = asyncio.get_running_loop(), b""
    while not line.endswith(b"\n"):
        more = await loop.sock_recv(client, MOST_BYTES)
        line += more
        if len(line) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES} bytes")
        if not more:
            break
    return line


def ask(path: Path, request: bytes, wait_s: float, most_bytes: int = MOST_BYTES) -> bytes:
    """Send a line to the controller at a socket, and return the response line, within about `wait_s`.

    Raises `NoControllerError` if no controller listens there, or the controller does not answer.
    """
    with connect(path) as client:
        client.settimeout(wait_s + REQUEST_S + CLOSE_S)
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # an early refusal closes the connection
                client.sendall(request + b"\n")
            with client.makefile("rb") as answers:
                return answers.readline(most_bytes)
        except OSError as error:
            raise NoControllerError(f"{path.parent}: its controller does not answer: {error}") from error


def connect(path: Path) -> socket.socket:
    """Return a connection to the controller at a socket; raises `NoControllerError`."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _directory(path.parent) as place:
            client.connect(f"{place}/{path.name}")
    except OSError as error:
        client.close()
        if isinstance(error, FileNotFoundError):
            raise NoControllerError(f"{path.parent}: no controller takes orders there") from error
        if isinstance(error, ConnectionRefusedError):
            gone = "it was killed, or its machine was restarted"
            raise NoControllerError(f"{path.parent}: its controller is gone: {gone}") from error
        raise NoControllerError(f"{path}: {error.strerror or error}") from error
    return client


@contextlib.contextmanager
def _directory(folder: Path) -> Iterator[str]:
    """Open a folder; yields a short path of it."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _listen(path: Path, mode: int, group: int | None) -> socket.socket:
    """Return the listening socket; no client can connect before its mode is set and it listens."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with _directory(path.parent) as place:
            if path.is_socket():  # left by a killed controller: a run has one controller at a time, by its lock
                path.unlink()
            listener.bind(f"{place}/{path.name}")
            if group is not None:
                os.chown(path, -1, group)
            path.chmod(mode)
        listener.listen(MOST_CLIENTS)
    except OSError:
        listener.close()
        raise
    return listener


def _peer(client: socket.socket) -> Peer:
    """Return the process and the user at the other end, as reported by the kernel."""
    pid, uid, _gid = _CREDENTIALS.unpack(
        client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )  # fmt: skip
    return Peer(pid, uid)
