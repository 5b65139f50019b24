"""Images of containers as files, and the records that CRIU writes into them."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from node_agent.drivers.containers.frozen import pack
from node_agent.drivers.containers.likeness import Likeness, Rights
from testbed.bus.messages import GuestSpec, ProgramSpec

SPEC = GuestSpec(
    guest="g", run="r", job=1, task=0, cpu_cores=1.0, memory_mib=64, program=ProgramSpec("eatcpu", 1000, 10, 1)
)  # fmt: skip
# A container whose number of threads is limited by some engines, and not by others.
PLAIN = Likeness(rights=frozenset({Rights(b"", 0, 0, 0), Rights(b"docker-default", 1, 0, 0)}))


def packed(folder: Path) -> Path:
    """Return an image of two files, one of them in a folder."""
    files = folder / "files"
    (files / "inner").mkdir(parents=True)
    (files / "pages-1.img").write_bytes(b"\x00memory" * 1000)
    (files / "inner" / "descriptors.json").write_text("[]", encoding="ascii")
    image = folder / "g.img"
    pack(files, SPEC, image)
    return image


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def core(*more: bytes, creds: bytes | None = None) -> bytes:
    """Write a core as CRIU does: two magic numbers, a length, and a record with the capabilities of a thread."""
    user, group = os.getuid(), os.getgid()
    own = b"".join(field(number, user if number % 2 else group) for number in range(1, 9))
    own += b"".join(field(number, 0) for number in (9, 9, 10, 10, 11, 11, 12, 12)) + field(13, 0)
    rights = own + b"".join(more) if creds is None else creds
    thread = field(1, 0) + field(2, 0) + field(10, rights)
    record = field(1, 1) + field(3, field(6, b"python")) + field(5, thread)
    return struct.pack("<III", 0x54564319, 0x55053847, len(record)) + record


def written(folder: Path, magic: int, name: str, *records: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    content = b"".join(struct.pack("<I", len(record)) + record for record in records)
    (folder / name).write_bytes(struct.pack("<II", 0x54564319, magic) + content)
    return folder
