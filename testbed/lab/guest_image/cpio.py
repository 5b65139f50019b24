"""Writes initramfs archives (cpio "newc") reproducibly: the same tree gives the same bytes."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass

from testbed.errors import TestbedError

_MAGIC = b"070701"
_TRAILER = "TRAILER!!!"
_BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of the archive; `name` is its path without a leading slash, `mode` its type and permissions.

    `data` is a regular file's content or a symbolic link's target; `device` is a device's major and minor.
    """

    name: str
    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


def folder(name: str, permissions: int = 0o755) -> Entry:
    """Return the entry of a folder."""
    return Entry(name, stat.S_IFDIR | permissions)


def file(name: str, data: bytes, permissions: int = 0o644) -> Entry:
    """Return the entry of a regular file."""
    return Entry(name, stat.S_IFREG | permissions, data)


def link(name: str, target: str) -> Entry:
    """Return the entry of a symbolic link."""
    return Entry(name, stat.S_IFLNK | 0o777, target.encode())


def device(name: str, major: int, minor: int, permissions: int = 0o600) -> Entry:
    """Return the entry of a character device."""
    return Entry(name, stat.S_IFCHR | permissions, device=(major, minor))


def archive(entries: Iterable[Entry]) -> bytes:
    """Return the archive of entries, which are sorted, owned by root, and have the modification time 0.

    Raises `TestbedError` for a repeated name, a name that is not a clean relative path, or a name whose folder is not
    in the archive.
    """
    ordered = sorted(entries, key=lambda entry: entry.name.split("/"))
    folders = {""}
    seen: set[str] = set()
    parts = []
    for number, entry in enumerate(ordered, start=1):
        name = entry.name
        if not name or name in seen or name == _TRAILER or "\0" in name or {"", ".", ".."} & set(name.split("/")):
            raise TestbedError(f"archive: name {name!r}: expected a clean relative path that comes once")
        if name.rpartition("/")[0] not in folders:
            raise TestbedError(f"archive: {name}: expected its folder {name.rpartition('/')[0]} in the archive")
        if stat.S_ISDIR(entry.mode):
            folders.add(name)
        seen.add(name)
        parts.append(_record(number, entry))
    parts.append(_record(0, Entry(_TRAILER, 0)))
    whole = b"".join(parts)
    return whole + bytes(-len(whole) % _BLOCK_BYTES)


def _record(number: int, entry: Entry) -> bytes:
    name = entry.name.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    fields = (
        number, entry.mode, 0, 0, links, 0, len(entry.data), 0, 0, *entry.device, len(name), 0,
    )  # fmt: skip  # inode, mode, uid, gid, links, mtime, size, of which device, what device, name's size, checksum
    head = _MAGIC + b"".join(b"%08X" % field for field in fields) + name
    return head + bytes(-len(head) % 4) + entry.data + bytes(-len(entry.data) % 4)
