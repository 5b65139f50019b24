"""CRIU's files as far as they are parsed: protobuf records after two magic numbers.

Formats: criu/include/magic.h, images/*.proto of CRIU.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

COMMON_MAGIC = 0x54564319
_MOST_BYTES = 4 << 20
_SIZE = struct.Struct("<I")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Field = tuple[int, int | bytes]


def records(path: Path, magic: int, *, common: bool = True) -> Iterator[bytes]:
    """Yield the records of a file; raises `ValueError` or `struct.error` for what CRIU would not write.

    Every file but the inventory begins with a `common` magic number.
    """
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise ValueError(f"{size} bytes")
    data = path.read_bytes()
    head = struct.pack("<II", COMMON_MAGIC, magic) if common else _SIZE.pack(magic)
    if not data.startswith(head):
        raise ValueError(f"it begins with {data[: len(head)].hex()}")
    at = len(head)
    while at < len(data):
        (length,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size
        if at + length > len(data):
            raise ValueError("a record is cut off")
        yield data[at : at + length]
        at += length


def fields(record: bytes) -> Iterator[Field]:
    """Yield numbers and values of the fields of a record; raises `ValueError` or `IndexError`."""
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


def inner(value: int | bytes) -> list[Field]:
    """Return the fields of a record within one; raises `ValueError` or `IndexError`."""
    if isinstance(value, int):
        raise ValueError("a number for a record")  # noqa: TRY004  # in a file
    return list(fields(value))


def numbers(value: int | bytes) -> list[int]:
    """Return a number, or all that are packed into one field; raises `ValueError` or `IndexError`."""
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        found.append(number)
    return found


def number_in(told: dict[int, int | bytes], number: int) -> int:
    """Return the number in a field, 0 without it; raises `ValueError`."""
    value = told.get(number, 0)
    if not isinstance(value, int):
        raise ValueError(f"field {number} is no number")  # noqa: TRY004  # in a file
    return value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for index in range(10):
        byte = data[at + index]
        number |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            return number, at + index + 1
    raise ValueError("a number without end")
