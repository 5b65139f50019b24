"""The Unix socket in a run directory on which the controller takes orders, and the client's end of it.

The user of the controller's process and root may give it orders. The kernel enforces this by the socket's mode, and
reports the process and user at the other end. Orders are not sent on the bus, where nodes are. A connection carries one
request and one answer, each a line of JSON of bounded length.

The address of a Unix socket has at most 107 bytes, and run directories may have longer paths; so both ends open the
directory, and name the socket by the descriptor (`/proc/self/fd/N/control.sock`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from testbed.control.order_messages import MOST_BYTES, Answer, Request
from testbed.control.orders import Orders
from testbed.errors import RunError, TestbedError

SOCKET: Final = "control.sock"
_REQUEST_S = 10.0  # from the connection to the whole request
_CLOSE_S = 5.0  # for answers in transit when the run ends
_MOST_CLIENTS = 16
_RETRY_S = 1.0
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid, of SO_PEERCRED
_log = logging.getLogger(__name__)


class NoControllerError(RunError):
    """No controller listens on the socket of a run directory."""


@contextlib.asynccontextmanager
async def taking_orders(orders: Orders, run: Path, *, dry: bool = False) -> AsyncIterator[None]:
    """Take orders in the run directory `run`; if no socket can be made there, the run continues without.

    A dry run takes none: its time is virtual.
    """
    if dry:
        yield
        return
    try:
        listener = await asyncio.to_thread(_listen, run)
    except OSError as error:
        _log.warning("%s: cannot be made: %s; the run takes no orders", run / SOCKET, error.strerror)
        yield
        return
    counter = _Counter(orders, listener)
    try:
        async with counter:
            yield
    finally:
        listener.close()
        await asyncio.to_thread(_remove, run)


class _Counter:
    """Serves the clients of one run at its listening socket, while it is entered."""

    def __init__(self, orders: Orders, listener: socket.socket) -> None:
        self._orders = orders
        self._listener = listener
        self._clients: set[asyncio.Task[None]] = set()
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
            await asyncio.wait(self._clients, timeout=_CLOSE_S)
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    def _accept(self) -> None:
        """Take one connection."""
        try:
            client, _ = self._listener.accept()
        except OSError as error:  # for example too many open files: a retry would fail at once
            _log.warning("no order was taken: %s", error.strerror)
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._listener)
            loop.call_later(_RETRY_S, self._listen)
            return
        client.setblocking(False)  # it has no keyword
        task = asyncio.create_task(self._serve(client), name="order of the operator")
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
            answer = _refusal("the run is over")
        with contextlib.suppress(OSError):  # the client is gone; its order stays in force
            async with asyncio.timeout(_REQUEST_S):
                await loop.sock_sendall(client, msgspec.json.encode(answer) + b"\n")

    async def _answer(self, client: socket.socket) -> Answer:
        pid, uid = _peer(client)
        if uid not in (0, os.geteuid()):
            return _refusal(f"user {uid} may not give orders to a run of user {os.geteuid()}")
        if len(self._clients) > _MOST_CLIENTS:
            return _refusal(f"{_MOST_CLIENTS} other commands wait for this run: end some")
        try:
            async with asyncio.timeout(_REQUEST_S):
                request = msgspec.json.decode(await _line(client), type=Request)
        except (ValueError, msgspec.DecodeError, OSError) as error:
            return _refusal(f"not an order: {error or 'nothing came'}")
        try:
            return await self._orders.carry_out(request, f"user {uid}, process {pid}")
        except TestbedError as error:
            return _refusal(str(error))


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


def send(run: Path, request: Request) -> Answer:
    """Give an order to the controller of a run, and return its answer once the effect is in place or after the timeout.

    Raises `NoControllerError` if no controller takes orders there, or it ends before it answers.
    """
    with _connect(run) as client:
        client.settimeout(request.wait_s + _REQUEST_S + _CLOSE_S)
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may have refused this user already
                client.sendall(msgspec.json.encode(request) + b"\n")
            with client.makefile("rb") as answers:
                line = answers.readline(MOST_BYTES)
        except OSError as error:
            raise NoControllerError(f"{run}: its controller does not answer: {error}") from error
        try:
            return msgspec.json.decode(line, type=Answer)
        except (ValueError, msgspec.DecodeError) as error:
            raise NoControllerError(f"{run}: its controller ended before it answered") from error


def takes_orders(run: Path) -> bool:
    """Whether a controller listens in a run directory."""
    try:
        with _connect(run):
            return True
    except NoControllerError:
        return False


def _connect(run: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _directory(run) as place:
            client.connect(f"{place}/{SOCKET}")
    except OSError as error:
        client.close()
        if isinstance(error, FileNotFoundError):
            raise NoControllerError(f"{run}: no controller takes orders there") from error
        if isinstance(error, ConnectionRefusedError):
            gone = "it was killed, or its machine was restarted"
            raise NoControllerError(f"{run}: its controller is gone: {gone}") from error
        raise NoControllerError(f"{run / SOCKET}: {error.strerror or error}") from error
    return client


@contextlib.contextmanager
def _directory(run: Path) -> Iterator[str]:
    """Open a directory; yields a short path of it."""
    descriptor = os.open(run, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _listen(run: Path) -> socket.socket:
    """Return the listening socket; no client can connect before its mode is set and it listens."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with _directory(run) as place:
            if (run / SOCKET).is_socket():  # of a controller that was killed: only one has the lock of a run
                (run / SOCKET).unlink()
            listener.bind(f"{place}/{SOCKET}")
            (run / SOCKET).chmod(0o600)
        listener.listen(_MOST_CLIENTS)
    except OSError:
        listener.close()
        raise
    return listener


def _remove(run: Path) -> None:
    with contextlib.suppress(OSError):
        (run / SOCKET).unlink()


def _peer(client: socket.socket) -> tuple[int, int]:
    """Return process and user at the other end, as reported by the kernel."""
    pid, uid, _gid = _CREDENTIALS.unpack(
        client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )  # fmt: skip
    return pid, uid


def _refusal(text: str) -> Answer:
    return Answer(done=False, text=text, state="")
