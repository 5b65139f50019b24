"""Messages between an agent and its keeper: JSON objects, one per line, with descriptors attached.

`fds` of a message is the number of its descriptors. Imports the standard library alone, as the keeper loads it.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

_PEER = struct.Struct("3i")  # process, user, group
_CHUNK = 65536
_MOST_FDS = 16


def peer_user(connection: socket.socket) -> int:
    """Return the user of the process at the other end."""
    return int(_PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1])


class Messages:
    """One end of a connection. No method waits for the peer, except `flush` with `wait`."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._unsent: deque[tuple[bytes, list[int]]] = deque()
        self._rest = b""
        self._fds: list[int] = []
        connection.setblocking(False)

    @property
    def waiting(self) -> bool:
        """Whether messages wait until the peer reads: `flush` once the connection is writable."""
        return bool(self._unsent)

    def send(self, fields: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send one message, later if the peer does not read; descriptors stay the caller's.

        A peer that is gone is noticed when the connection is read.
        """
        line = json.dumps({**fields, "fds": len(fds)}).encode() + b"\n"
        self._unsent.append((line, [os.dup(fd) for fd in fds]))
        self.flush()

    def flush(self, *, wait: bool = False) -> None:
        """Send what can be sent at once, or all, if it may `wait`."""
        self.connection.setblocking(wait)
        while self._unsent:
            line, fds = self._unsent[0]
            try:
                sent = socket.send_fds(self.connection, [line], fds)
            except BlockingIOError:
                return
            except OSError:
                sent = len(line)
            for fd in fds:
                os.close(fd)
            if sent < len(line):
                self._unsent[0] = line[sent:], []
            else:
                self._unsent.popleft()

    def receive(self) -> list[tuple[dict[str, Any], list[int]]] | None:
        """Return the messages that have arrived, None if the peer is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self.connection, _CHUNK, _MOST_FDS, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return []
        except OSError:
            return None
        self._fds += fds
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = []
        for line in lines:
            fields = json.loads(line)
            count = fields["fds"]
            found.append((fields, self._fds[:count]))
            del self._fds[:count]
        return found

    def close(self) -> None:
        """Close the connection, and descriptors that were not sent or not taken."""
        self.connection.close()
        for fd in [*self._fds, *(fd for _, fds in self._unsent for fd in fds)]:
            os.close(fd)
        self._fds.clear()
        self._unsent.clear()
