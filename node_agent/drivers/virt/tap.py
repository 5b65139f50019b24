"""Messages received by a virtual machine, counted at its tap by the hardware address that sent them.

A packet socket sees each frame of the tap. A filter in the kernel passes the first bytes of frames whose TCP segment
has content, since a mere acknowledgement is no message. Frames that were not fetched are dropped once the socket's
buffer is full.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
from collections.abc import Mapping
from pathlib import Path

_ETH_P_ALL = 3
_SO_ATTACH_FILTER = 26
_CLONE_NEWNET = 0x40000000
_TO_GUEST = socket.PACKET_OUTGOING
_HEAD_BYTES = 64
_BUFFER_BYTES = 1 << 20
MOST_FRAMES = 4096  # per call of `received`: further frames are counted by the next call
_IP = struct.Struct("!2xH")
_INSTRUCTION = struct.Struct("HBBI")
# Classic BPF (linux/filter.h), by its operations: load half or byte, load from the index, jump if equal, and so on.
_LDH, _LDB, _LDB_X, _LDX_IHL, _JEQ, _ST, _LD_M, _RSH, _AND, _ADD_X, _SUB_X, _TAX, _RET = (
    0x28, 0x30, 0x50, 0xB1, 0x15, 0x02, 0x60, 0x74, 0x54, 0x0C, 0x1C, 0x07, 0x06,
)  # fmt: skip
_FILTER = (
    (_LDH, 0, 0, 12), (_JEQ, 0, 14, 0x0800),  # IPv4, else the last instruction
    (_LDB, 0, 0, 23), (_JEQ, 0, 12, 6),  # TCP
    (_LDH, 0, 0, 16), (_ST, 0, 0, 0),  # bytes of the packet
    (_LDX_IHL, 0, 0, 14),  # of these the header of IP
    (_LDB_X, 0, 0, 26), (_RSH, 0, 0, 2), (_AND, 0, 0, 0x3C),  # and that of TCP
    (_ADD_X, 0, 0, 0), (_TAX, 0, 0, 0), (_LD_M, 0, 0, 0), (_SUB_X, 0, 0, 0),
    (_JEQ, 1, 0, 0), (_RET, 0, 0, _HEAD_BYTES),  # nothing else: an acknowledgement
    (_RET, 0, 0, 0),
)  # fmt: skip


def why_unseen() -> str:
    """Return why this process cannot see the frames of a tap, an empty string if it can."""
    try:
        _socket().close()
    except OSError as error:
        return f"frames of its guests cannot be seen: packet socket: {error.strerror}"
    return ""


def content_bytes(head: bytes) -> int:
    """Return the bytes of content in a frame of TCP over IPv4, from its first bytes; 0 for any other frame."""
    if len(head) < 48 or head[12:14] != b"\x08\x00" or head[23] != socket.IPPROTO_TCP:
        return 0
    packet_bytes = int(_IP.unpack_from(head, 14)[0])
    ip_bytes = 4 * (head[14] & 15)
    if 14 + ip_bytes + 12 >= len(head):
        return 0
    return max(packet_bytes - ip_bytes - 4 * (head[14 + ip_bytes + 12] >> 4), 0)


class Tap:
    """A tap in the network namespace of a process; `ranks` maps hardware addresses to ranks. Raises `OSError`."""

    def __init__(self, name: str, pid: int, ranks: Mapping[bytes, int]) -> None:
        self._ranks = ranks
        self._socket = _in_namespace(pid)
        try:
            _filter(self._socket)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            self._socket.bind((name, _ETH_P_ALL))
            self.received()  # frames from before the bind may be of any card
        except BaseException:
            self._socket.close()
            raise

    def received(self) -> list[int]:
        """Return the bytes that came from each rank since the last call. Raises `OSError` once the tap is gone."""
        found = [0] * (max(self._ranks.values(), default=-1) + 1)
        for _ in range(MOST_FRAMES):
            try:
                head, (_, _, kind, _, _) = self._socket.recvfrom(_HEAD_BYTES)
            except BlockingIOError:
                break
            rank = self._ranks.get(head[6:12])
            if kind == _TO_GUEST and rank is not None:
                found[rank] += content_bytes(head)
        return found

    def close(self) -> None:
        """Stop counting."""
        self._socket.close()


def _socket() -> socket.socket:
    # protocol 0: no frame is received before the bind
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0)


def _filter(of: socket.socket) -> None:
    code = ctypes.create_string_buffer(b"".join(_INSTRUCTION.pack(*each) for each in _FILTER))
    of.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", len(_FILTER), ctypes.addressof(code)))


def _is_ours(pid: int) -> bool:
    """Whether a process shares our network namespace; assumed where we may not read its namespace."""
    try:
        return Path(f"/proc/{pid}/ns/net").samefile("/proc/self/ns/net")
    except PermissionError:
        return True


def _in_namespace(pid: int) -> socket.socket:
    """Return a socket in the network namespace of a process, made by a thread that ends there if it is another one."""
    if _is_ours(pid):
        return _socket()
    found: list[socket.socket | OSError] = []

    def make() -> None:
        try:
            descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number), f"network namespace of process {pid}")
            finally:
                os.close(descriptor)
            found.append(_socket())
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=make, name=f"namespace of {pid}")
    thread.start()
    thread.join()
    (made,) = found
    if isinstance(made, OSError):
        raise made
    return made
