"""Checks of the PMI keys that ranks of an MPI job publish when MPI starts: addresses of the rank's MPI transport.

MPICH gathers a value of every rank under `-allgather-NUMBER-RANK`, or `-allgather-shm-NUMBER-RANK`. A value is in
hexadecimal, with `[N]` for N bytes of zero, N from 2 on. A value of `SEGMENT_BYTES` or more is `segments=N`, and its
data is in N keys that end in `-seg-I/N`: all but the last have `SEGMENT_BYTES`. MPICH writes segment I at
`(I - 1) * SEGMENT_BYTES` into a buffer for values of the reading rank's own size, and only then checks the data. So all
ranks must publish the same number of bytes, and cut them at the same places.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from testbed.errors import TestbedError, shown

MOST_VALUE_CHARS = 1023
MOST_SEGMENTS = 64
SEGMENT_BYTES = (MOST_VALUE_CHARS - 1) // 2  # as in MPICH, where the process manager reports a maximum of 1024
MOST_KEYS = 256  # of one rank, from its start to its end
MOST_BYTES = MOST_SEGMENTS * SEGMENT_BYTES  # of one value, decoded
MOST_CHARS = 60 << 10  # of one rank's keys and values in a barrier, with quotes: one event has all of them
_QUOTES = 6  # around and between a key and its value
_SHOWN_CHARS = 80
_KEY = re.compile(r"(?P<gather>-allgather(?:-shm)?-[1-9][0-9]?)-(?P<rank>[0-9]{1,7})(?:-seg-(?P<part>[0-9/]{3,5}))?")
_SEGMENTS = re.compile(r"segments=([1-9][0-9]?)")
_BYTES = re.compile(r"(?:[0-9A-Fa-f]{2}|\[(?:[2-9]|[1-9][0-9]{1,4})\])+")
_ZEROS = re.compile(r"\[([0-9]{1,5})\]")


class BadKeysError(TestbedError):
    """A rank published keys that MPI would not publish; the message has the key, its value and the expected form."""


def check_keys(rank: int, keys: Mapping[str, str]) -> dict[str, int]:
    """Return the number of bytes that a rank publishes in each gathering, by name; raises `BadKeysError`."""
    if len(keys) > MOST_KEYS:
        raise BadKeysError(f"{len(keys)} MPI keys of rank {rank}: expected at most {MOST_KEYS}")
    chars = sum(len(key) + len(value) + _QUOTES for key, value in keys.items())
    if chars > MOST_CHARS:
        raise BadKeysError(f"MPI keys of rank {rank} of {chars} characters: expected at most {MOST_CHARS}")
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
            size = _decoded_bytes(key, value)
            _check_size(key, size, found["part"] or "")
            sizes[gather] = sizes.get(gather, 0) + size
    for gather in {**heads, **parts}:
        _check_parts(f"{gather}-{rank}", heads.get(gather, ""), parts.get(gather, set()))
    return sizes


def _check_size(key: str, size: int, part: str) -> None:
    number, _, count = part.partition("/")
    if number != count and size != SEGMENT_BYTES:
        raise BadKeysError(f"MPI key {key} of {size} bytes: expected {SEGMENT_BYTES}, as another segment follows")
    most = SEGMENT_BYTES if part else SEGMENT_BYTES - 1
    if size > most:
        raise BadKeysError(f"MPI key {key} of {size} bytes: expected at most {most}")


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
