"""What ranks of an MPI job publish when MPI starts: addresses of its transport, under keys of their own.

MPICH gathers a value of every rank under `-allgather-NUMBER-RANK`, or `-allgather-shm-NUMBER-RANK`. A value is in
hexadecimal, with `[N]` for N bytes of zero. A long value is `segments=N`, and in N keys that end in `-seg-I/N`. MPICH
writes what it reads into a buffer for values of its own size, so all ranks must publish the same number of bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from testbed.errors import TestbedError, shown

MOST_VALUE_CHARS = 1023
MOST_SEGMENTS = 64
MOST_KEYS = 256  # of one rank, from its start to its end
MOST_BYTES = 65536  # of one value, decoded
_SHOWN_CHARS = 80
_KEY = re.compile(r"(?P<gather>-allgather(?:-shm)?-[1-9][0-9]?)-(?P<rank>[0-9]{1,7})(?:-seg-(?P<part>[0-9/]{3,5}))?")
_SEGMENTS = re.compile(r"segments=([1-9][0-9]?)")
_BYTES = re.compile(r"(?:[0-9A-Fa-f]{2}|\[[0-9]{1,5}\])+")
_ZEROS = re.compile(r"\[([0-9]{1,5})\]")


class BadKeysError(TestbedError):
    """A rank publishes what MPI would not; the message names the key, its value and what would be right."""


def check_keys(rank: int, keys: Mapping[str, str]) -> dict[str, int]:
    """Return the bytes that a rank publishes in each gathering, by its name; raises `BadKeysError`."""
    if len(keys) > MOST_KEYS:
        raise BadKeysError(f"{len(keys)} MPI keys of rank {rank}: expected at most {MOST_KEYS}")
    heads: dict[str, str] = {}
    parts: dict[str, set[str]] = {}
    sizes: dict[str, int] = {}
    for key, value in keys.items():
        found = _KEY.fullmatch(key)
        if found is None or int(found["rank"]) != rank or str(rank) != found["rank"]:
            raise _bad(key, value, f"expected a key such as -allgather-1-{rank}, of rank {rank} itself")
        gather = found["gather"]
        if found["part"] is None:
            heads[gather] = value
        else:
            parts.setdefault(gather, set()).add(found["part"])
        if found["part"] is not None or not _SEGMENTS.fullmatch(value):
            sizes[gather] = sizes.get(gather, 0) + _decoded_bytes(key, value)
    for gather in {**heads, **parts}:
        _check_parts(f"{gather}-{rank}", heads.get(gather, ""), parts.get(gather, set()))
        if sizes[gather] > MOST_BYTES:
            raise BadKeysError(f"MPI key {gather}-{rank} of {sizes[gather]} bytes: expected at most {MOST_BYTES}")
    return sizes


def _check_parts(key: str, head: str, parts: set[str]) -> None:
    announced = _SEGMENTS.fullmatch(head)
    count = int(announced[1]) if announced is not None else 0
    if count > MOST_SEGMENTS or parts != {f"{part}/{count}" for part in range(1, count + 1)}:
        there = ", ".join(sorted(parts)) or "none"
        raise _bad(key, head, f"expected its segments, at most {MOST_SEGMENTS}; there are {shown(there, _SHOWN_CHARS)}")


def _decoded_bytes(key: str, value: str) -> int:
    if len(value) > MOST_VALUE_CHARS or not _BYTES.fullmatch(value):
        raise _bad(key, value, f"expected bytes in hexadecimal, at most {MOST_VALUE_CHARS} characters")
    zeros = _ZEROS.findall(value)
    plain = len(value) - sum(len(zero) + 2 for zero in zeros)
    return plain // 2 + sum(map(int, zeros))


def _bad(key: str, value: str, expected: str) -> BadKeysError:
    return BadKeysError(f"MPI key {shown(key, _SHOWN_CHARS)} = {shown(value, _SHOWN_CHARS)}: {expected}")
