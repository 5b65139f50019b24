"""Serves a node's images to the agents of other nodes: one transfer per ticket (`image_tickets`).

The server listens on a TCP port, with TLS where agents have certificates. Against unauthorised clients it bounds the
connections, the connections per address, and the time for a handshake, a line and each piece of an image.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from node_agent.drivers.protocol import DriverError, ImageLostError
from node_agent.few_lines import FewLines
from node_agent.image_tickets import NoTicketError, Tickets
from node_agent.image_wire import LONGEST_LINE, PATIENCE_S, Answer, Request, line_of
from testbed.bus.suspicious_acts import SOMEBODY, ActKind, ActLog
from testbed.errors import FailureCode, UserError

MOST_CONNECTIONS = 256
MOST_OF_ONE_ADDRESS = 128
_PIECE_BYTES = 1 << 20
_BACKLOG = 128
_REST_S = 0.1  # pause after a failed accept, such as without a free descriptor
_log = logging.getLogger(__name__)


class ImageServer:
    """Serves the file `find(image)` of images with valid `tickets`; with `tls` to other agents only.

    Requests that no honest node sends are also reported to `acts`.
    """

    def __init__(
        self,
        find: Callable[[str], Path],
        tickets: Tickets,
        tls: ssl.SSLContext | None = None,
        acts: ActLog | None = None,
    ) -> None:
        self._find = find
        self._tickets = tickets
        self._tls = tls
        self._acts = acts if acts is not None else ActLog(lambda _acts: None)
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._talks: dict[asyncio.Task[None], str] = {}
        self._refused = FewLines(_log.warning, lambda: asyncio.get_running_loop().time())
        self.port = 0

    async def open(self, host: str) -> None:
        """Listen on a free port; raises `UserError` if `host` is no address of this machine."""
        try:
            family, _, _, _, place = (await asyncio.get_running_loop().getaddrinfo(
                host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            ))[0]  # fmt: skip
            self._listener = socket.create_server(place[:2], family=family, backlog=_BACKLOG)
        except OSError as error:
            why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
            raise UserError(
                f"--address {host}: images cannot be served there: {why}: expected an address of this machine"
            ) from None
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._accepting = asyncio.create_task(self._accept(self._listener), name="accept image fetches")

    async def close(self) -> None:
        """Stop listening, and abort transfers."""
        tasks = [*([self._accepting] if self._accepting is not None else []), *self._talks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, place = await loop.sock_accept(listener)
            except OSError as error:  # the client is gone already, or no descriptor is left
                self._refused(f"image server: a connection could not be accepted: {error}")
                await asyncio.sleep(_REST_S)
                continue
            address = str(place[0])
            if why := self._full(address):
                self._refused(f"image server: {address} refused: {why}")
                connection.close()
                continue
            talk = asyncio.create_task(self._talk(connection, address), name="send image")
            self._talks[talk] = address
            talk.add_done_callback(self._talks.pop)

    def _full(self, address: str) -> str:
        """Return the reason why no further connection is accepted, or an empty string."""
        if len(self._talks) >= MOST_CONNECTIONS:
            return f"{MOST_CONNECTIONS} connections are open"
        if Counter(self._talks.values())[address] >= MOST_OF_ONE_ADDRESS:
            return f"{MOST_OF_ONE_ADDRESS} connections from there are open"
        return ""

    async def _talk(self, connection: socket.socket, address: str) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=LONGEST_LINE)
        protocol = asyncio.StreamReaderProtocol(reader)
        limits = {"ssl_handshake_timeout": PATIENCE_S, "ssl_shutdown_timeout": PATIENCE_S} if self._tls else {}
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=self._tls, **limits)
        except OSError as error:  # includes errors of TLS
            connection.close()
            self._refused(f"image server: {address} refused: no handshake: {error or type(error).__name__}")
            if isinstance(error, ssl.SSLError):
                self._acts.note(SOMEBODY, ActKind.REFUSED_CONNECTION, f"image server: from {address}: {error}")
            return
        except BaseException:
            connection.close()
            raise
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await self._serve(reader, writer, address)
        except TimeoutError:
            self._refused(f"image server: {address} cut off: it did not read or write for {PATIENCE_S:g} s")
        except OSError as error:
            _log.debug("image server: %s: %s", address, error)  # the client hung up
        finally:
            with contextlib.suppress(OSError, TimeoutError):
                writer.close()
                async with asyncio.timeout(PATIENCE_S):
                    await writer.wait_closed()
            transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> None:
        peer = _name_of(writer)
        try:
            async with asyncio.timeout(PATIENCE_S):
                line = await reader.readline()
            path, offset, size = await self._open(line, peer)
        except (DriverError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            lost = isinstance(error, ImageLostError)
            why = f"its line has more than {LONGEST_LINE} bytes" if type(error) is ValueError else str(error)
            self._refused(f"image server: {f'node {peer} at ' if peer else ''}{address} refused: {why}")
            if isinstance(error, NoTicketError) or not isinstance(error, DriverError):
                self._acts.note(peer or SOMEBODY, ActKind.REFUSED_IMAGE, f"from {address}: {why}")
            async with asyncio.timeout(PATIENCE_S):
                writer.write(line_of(Answer(error=why, code=FailureCode.IMAGE_LOST.value if lost else "")))
                await writer.drain()
            return
        with path.open("rb") as file:
            async with asyncio.timeout(PATIENCE_S):
                writer.write(line_of(Answer(bytes=size - offset)))
                await writer.drain()
            for begin in range(offset, size, _PIECE_BYTES):
                async with asyncio.timeout(PATIENCE_S):
                    await asyncio.get_running_loop().sendfile(writer.transport, file, begin, _PIECE_BYTES)

    async def _open(self, line: bytes, peer: str) -> tuple[Path, int, int]:
        """Return the file that a request is for, where it begins, and its size; raises `DriverError` and others."""
        request = msgspec.json.decode(line, type=Request)
        image = self._tickets.take(request, peer)
        path = await asyncio.to_thread(self._find, image.image)
        try:
            size = path.stat().st_size
        except OSError as error:
            raise ImageLostError(f"image {image.image}: {error.strerror}") from error
        if size != image.bytes:
            raise ImageLostError(f"image {image.image} has another size: {size} bytes, expected {image.bytes}")
        if request.offset > size:
            raise DriverError(f"offset {request.offset}: expected 0..{size}")
        return path, request.offset, size


def _name_of(writer: asyncio.StreamWriter) -> str:
    """Return the name in the certificate of the other end, "" without TLS."""
    certificate = writer.get_extra_info("peercert") or {}
    names = [value for group in certificate.get("subject", ()) for key, value in group if key == "commonName"]
    return str(names[0]) if names else ""
