"""A connection to a program, whose messages are taken from the socket only once they have been processed.

An agent that is killed in between leaves them to the next one, which then processes them again.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

_PEER = struct.Struct("3i")  # process, user, group
_CHUNK = 65536


class Channel:
    """`hear(data)` gets the bytes of the peer, `closed` is called when it hangs up; neither after `close`."""

    def __init__(self, connection: socket.socket, hear: Callable[[bytes], None], closed: Callable[[], None]) -> None:
        self._connection = connection
        self._hear = hear
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._unsent = b""
        self._open = True
        self.pid, self.user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        connection.setblocking(False)

    def start(self) -> None:
        """Begin to read."""
        self._loop.add_reader(self._connection, self._read)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._connection.fileno()

    def write(self, data: bytes) -> None:
        """Send bytes, later if the peer does not read."""
        self._unsent += data
        if len(self._unsent) == len(data):
            self._send()

    def close(self) -> None:
        """Close this end. Copies of the descriptor in other processes keep the connection open."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._connection)
            self._loop.remove_writer(self._connection)
            self._connection.close()

    def abort(self) -> None:
        """End the connection for all processes that have a copy of it."""
        if self._open:
            try:
                self._connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # the peer has hung up
                self._end()

    def _send(self) -> None:
        try:
            sent = self._connection.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(self._unsent)  # the peer has hung up, which reading will show
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self._loop.add_writer(self._connection, self._send)
        else:
            self._loop.remove_writer(self._connection)

    def _read(self) -> None:
        try:
            data = self._connection.recv(_CHUNK, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        whole = data[: data.rfind(b"\n") + 1] or data  # a cut message would stay with an agent that is killed
        try:
            self._hear(whole)
        finally:
            if self._open:
                self._connection.recv(len(whole))

    def _end(self) -> None:
        self.close()
        self._closed()
