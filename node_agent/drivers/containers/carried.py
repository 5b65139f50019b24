"""What an image of a whole container may carry: processes without rights, and nothing that another program is fed with.

CRIU reads the files as root, and gives processes what is written there: their user, their capabilities. It starts
programs (iptables, ip, nft) with files of a network that a container of ours does not have. So only files that a
container without a network has are laid out, and its processes must have our own user and no capability.

CRIU's formats: criu/image-desc.c, images/core.proto, images/creds.proto.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from node_agent.drivers.protocol import DriverError

_NUMBERED = (
    "fdinfo|pagemap|pagemap-shmem|core|ids|mm|vmas|sigacts|itimers|posix-timers|utsns|ipcns-(var|shm|msg|sem)|fs|"
    "mountpoints|rlimit|pages|pages-shmem|signal-[sp]|timens|pidns"
)
_ALONE = (
    "inventory|files|reg-files|eventfd|eventpoll|eventpoll-tfd|signalfd|pipes|pipes-data|fifo|fifo-data|pstree|unixsk|"
    "sk-queues|remap-fpath|memfd|filelocks|cgroup|timerfd|cpuinfo|seccomp|stats-dump|irmap-cache"
)
_IMAGE = re.compile(
    rf"(({_NUMBERED})-[0-9]{{1,20}}|{_ALONE}|ghost-file-[0-9a-f]{{1,16}}|tmpfs(-dev)?-[0-9]{{1,10}}\.tar\.gz)\.img"
)
_BESIDE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}\.(json|log)")  # the engine's own notes
_CORE = re.compile(r"core-[0-9]+\.img")
_MOST_CORE_BYTES = 1 << 20
_HEAD = struct.Struct("<III")  # two magic numbers, the length of the record
_COMMON_MAGIC, _CORE_MAGIC = 0x54564319, 0x55053847
_THREAD_CORE, _CREDS = 5, 10  # fields of a core, and of a thread in it
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_USERS, _GROUPS = (1, 3, 5, 7), (2, 4, 6, 8, 14)  # real, effective, saved, of files; other groups
_CAPABILITIES = (9, 10, 11, 12)
_SECURE_BITS, _PROFILE, _NO_NEW_PRIVILEGES = 13, 15, 18
_OWN_PROFILE = b"docker-default"


def may_be_carried(name: str) -> bool:
    """Return whether a file of that path may be in an image: CRIU's, or in whatever folder the engine's notes."""
    folder, _, last = name.rpartition("/")
    return bool(_BESIDE.fullmatch(last) or (not folder and _IMAGE.fullmatch(last)))


def check_rights(folder: Path) -> None:
    """Raise `DriverError` unless all threads that CRIU would make from a folder have our user and no capability."""
    cores = sorted(path for path in folder.iterdir() if _CORE.fullmatch(path.name))
    for path in cores:
        try:
            _check_core(path)
        except (ValueError, struct.error, IndexError) as error:
            raise DriverError(f"an image holds {path.name!r}, which is no process of CRIU's: {error}") from None


def _check_core(path: Path) -> None:
    if path.stat().st_size > _MOST_CORE_BYTES:
        raise ValueError(f"{path.stat().st_size} bytes")
    data = path.read_bytes()
    common, magic, size = _HEAD.unpack_from(data)
    if (common, magic) != (_COMMON_MAGIC, _CORE_MAGIC):
        raise ValueError(f"it begins with {common:x} {magic:x}")
    record = data[_HEAD.size :]
    if len(record) != size:
        raise ValueError(f"{len(record)} bytes: expected {size}")
    threads = [value for field, value in _fields(record) if field == _THREAD_CORE]
    rights = [value for thread in threads for field, value in _fields(_as_bytes(thread)) if field == _CREDS]
    if len(threads) != 1 or len(rights) != 1:
        raise ValueError(f"{len(rights)} sets of rights: expected one")
    held = list(_fields(_as_bytes(rights[0])))
    if missing := {*_USERS, *_GROUPS[:4]} - {field for field, _ in held}:
        raise ValueError(f"rights without fields {sorted(missing)}")
    for field, value in held:
        if wrong := _wrong(field, value):
            raise DriverError(f"an image holds {path.name!r}, a process with {wrong}")


def _wrong(field: int, value: int | bytes) -> str:
    """Return what a process must not have, or an empty string."""
    numbers = [value] if isinstance(value, int) else list(_varints(value)) if field in _REPEATED else []
    if field in _USERS:
        return "" if numbers == [os.getuid()] else f"user {value!r}: expected {os.getuid()}"
    if field in _GROUPS:
        return "" if set(numbers) <= {os.getgid()} else f"group {value!r}: expected {os.getgid()}"
    if field in _CAPABILITIES:
        return "" if not any(numbers) else "capabilities: expected none"
    if field == _PROFILE:
        return "" if value in (b"", _OWN_PROFILE) else f"security profile {value!r}: expected {_OWN_PROFILE!r}"
    if field == _NO_NEW_PRIVILEGES:
        return "" if value == 1 else "a way to new privileges"
    return "" if field == _SECURE_BITS else f"rights of an unknown kind ({field})"


_REPEATED = frozenset({*_CAPABILITIES, 14})


def _as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number for a record")  # noqa: TRY004  # in a file
    return value


def _fields(record: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield numbers and values of the fields of a protobuf record; raises `ValueError` or `IndexError`."""
    at = 0
    while at < len(record):
        key, at = _varint(record, at)
        kind = key & 7
        if kind == _VARINT:
            number, at = _varint(record, at)
            yield key >> 3, number
            continue
        if kind == _BYTES:
            size, at = _varint(record, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        if at + size > len(record):
            raise ValueError("a field is cut off")
        yield key >> 3, record[at : at + size]
        at += size


def _varints(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        number, at = _varint(data, at)
        yield number


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for index in range(10):
        byte = data[at + index]
        number |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            return number, at + index + 1
    raise ValueError("a number without end")
