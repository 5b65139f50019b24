"""The Unix socket in a run directory on which the controller takes orders, and the client's end of it.

Whoever may command the controller's process may give it orders: the same user, and root. The kernel enforces this by
the socket's mode, and reports who is at the other end. Nothing of it is on the bus, where nodes are. A connection
carries one request and one answer, each a line of JSON of bounded length.

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
from pathlib import Path
from typing import Final

import msgspec

from testbed.control.order_messages import MOST_BYTES, Answer, Request
from testbed.control.orders import Orders
from testbed.errors import RunError, TestbedError

SOCKET: Final = "control.sock"
_REQUEST_S = 10.0  # from the connection to the whole request
_CLOSE_S = 5.0  # for answers that are on their way when the run ends
_MOST_CLIENTS = 16
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid, of SO_PEERCRED
_log = logging.getLogger(__name__)


class NoControllerError(RunError):
    """No controller listens on the socket of a run directory."""


@contextlib.asynccontextmanager
async def taking_orders(orders: Orders, run: Path, *, dry: bool = False) -> AsyncIterator[None]:
    """Take orders in the run directory `run`; a run in whose directory no socket can be made goes on without.

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
    counter = _Counter(orders)
    try:
        server = await asyncio.start_unix_server(counter.serve, sock=listener, limit=MOST_BYTES)
        try:
            yield
        finally:
            server.close()
            await counter.close()
    finally:
        await asyncio.to_thread(_remove, run)


class _Counter:
    """Serves the clients of one run."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._clients: set[asyncio.Task[None]] = set()

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection."""
        task = asyncio.create_task(self._serve(reader, writer), name="order of the operator")
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def close(self) -> None:
        """Wait a moment for answers that are on their way; tell the other clients that the run is over."""
        if self._clients:
            await asyncio.wait(self._clients, timeout=_CLOSE_S)
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            try:
                answer = await self._answer(reader, writer)
            except asyncio.CancelledError:
                answer = _refusal("the run is over")
            writer.write(msgspec.json.encode(answer) + b"\n")
            with contextlib.suppress(OSError):
                await writer.drain()
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Answer:
        pid, uid = _peer(writer.get_extra_info("socket"))
        if uid not in (0, os.geteuid()):
            return _refusal(f"user {uid} may not give orders to a run of user {os.geteuid()}")
        if len(self._clients) > _MOST_CLIENTS:
            return _refusal(f"{_MOST_CLIENTS} other commands wait for this run: end some")
        try:
            async with asyncio.timeout(_REQUEST_S):
                line = await reader.readline()
            request = msgspec.json.decode(line, type=Request)
        except (ValueError, msgspec.DecodeError, TimeoutError, OSError) as error:
            return _refusal(f"not an order: {error or 'nothing came'}")
        try:
            return await self._orders.carry_out(request, f"user {uid}, process {pid}")
        except TestbedError as error:
            return _refusal(str(error))


def send(run: Path, request: Request) -> Answer:
    """Give an order to the controller of a run, and return its answer once the effect is there, or its time is over.

    Raises `NoControllerError` if no controller takes orders there, or it ends before it answers.
    """
    with _connected(run) as client:
        client.settimeout(request.wait_s + _REQUEST_S + _CLOSE_S)
        try:
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
        with _connected(run):
            return True
    except NoControllerError:
        return False


@contextlib.contextmanager
def _connected(run: Path) -> Iterator[socket.socket]:
    try:
        with _directory(run) as place, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(f"{place}/{SOCKET}")
            yield client
    except FileNotFoundError as error:
        raise NoControllerError(f"{run}: no controller takes orders there") from error
    except ConnectionRefusedError as error:
        raise NoControllerError(
            f"{run}: its controller is gone: it was killed, or its machine was restarted"
        ) from error
    except OSError as error:
        raise NoControllerError(f"{run / SOCKET}: {error.strerror or error}") from error


@contextlib.contextmanager
def _directory(run: Path) -> Iterator[str]:
    """Open a directory; yields a short path of it."""
    descriptor = os.open(run, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _listen(run: Path) -> socket.socket:
    """Return the listening socket; until it listens, with its mode set, nobody can connect."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with _directory(run) as place:
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
    """Return process and user at the other end, as the kernel knows them."""
    pid, uid, _gid = _CREDENTIALS.unpack(
        client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )  # fmt: skip
    return pid, uid


def _refusal(text: str) -> Answer:
    return Answer(done=False, text=text, state="")
