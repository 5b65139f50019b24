"""Properties of our containers in CRIU's files: an image from another node must have the same ones.

Formats: images/core.proto, creds.proto, seccomp.proto, cgroup.proto of CRIU.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from node_agent.drivers.containers.carried import Mounts, check_mounts, check_rights, mounts_of
from node_agent.drivers.containers.criu_records import Field, fields, inner, number_in, records
from node_agent.drivers.containers.places import Places, places_of
from node_agent.drivers.protocol import SuspectError
from testbed.errors import shown

_CORE_MAGIC, _SECCOMP_MAGIC, _CGROUP_MAGIC = 0x55053847, 0x64413049, 0x59383330
_CORES = "core-*.img"
_THREAD, _TASK = 5, 3  # of a core
_CREDS, _SECCOMP = 10, 11  # of a thread
_OLD_SECCOMP = 11  # of a task
_SECURE_BITS, _PROFILE, _NO_NEW_PRIVILEGES = 13, 15, 18  # of rights
_PROPERTY_NAME = re.compile(r"[a-z0-9_]{1,40}(\.[a-z0-9_]{1,60}){1,4}")
_SETS, _CONTROLLERS, _MEMBERS, _PATH = 1, 2, 2, 2  # of control groups
_DIRECTORIES, _DIRECTORY, _CHILDREN, _PROPERTIES, _PROPERTY = 2, 1, 2, 3, 1
_MOST_DEPTH = 16


class Rights(NamedTuple):
    """The limits of a thread beside its user and its capabilities."""

    profile: bytes
    no_new_privileges: int
    secure_bits: int
    seccomp: int


@dataclass(frozen=True, slots=True)
class Likeness:
    """Properties of a container: mounts, limits of threads, filters of seccomp, properties of groups, places."""

    mounts: Mounts = field(default_factory=Counter)
    rights: frozenset[Rights] = frozenset()
    filters: frozenset[bytes] = frozenset()
    properties: frozenset[str] = frozenset()
    places: Places = field(default_factory=Places)


def likeness_of(folder: Path) -> Likeness:
    """Return the properties in CRIU's files, which may be forged; raises `SuspectError`."""
    try:
        properties = frozenset(_properties(folder / "cgroup.img"))
        filters = frozenset(_filters(folder / "seccomp.img"))
        rights = frozenset(_rights(path) for path in sorted(folder.glob(_CORES)))
        places = places_of(folder)
    except (ValueError, struct.error, IndexError, FileNotFoundError) as error:
        raise SuspectError(f"an image holds what CRIU does not write of a container: {error}") from None
    return Likeness(mounts_of(folder), rights, filters, properties, places)


def check_like(folder: Path, own: Likeness) -> None:
    """Raise `DriverError` that names the first property in which a container differs from our own."""
    check_rights(folder)
    check_mounts(folder, own.mounts)
    found = likeness_of(folder)
    for rights in found.rights - own.rights:
        expected = " or ".join(map(str, sorted(own.rights))) or "none"
        raise SuspectError(f"an image holds a thread with {rights}: expected {expected}")
    if found.filters != own.filters:
        raise SuspectError("an image's filters of system calls are not those of a container of ours")
    if difference := found.places.difference(own.places):
        raise SuspectError(difference)
    for name in found.properties - own.properties:
        raise SuspectError(f"an image sets {shown(name, 80)} of a control group, which no container of ours has")


def _rights(path: Path) -> Rights:
    (record,) = records(path, _CORE_MAGIC)
    core = dict(fields(record))
    thread, task = dict(inner(core.get(_THREAD, b""))), dict(inner(core.get(_TASK, b"")))
    held = dict(inner(thread.get(_CREDS, b"")))
    profile = held.get(_PROFILE, b"")
    if isinstance(profile, int):
        raise ValueError("a profile that is a number")  # noqa: TRY004  # in a file
    return Rights(
        profile, number_in(held, _NO_NEW_PRIVILEGES), number_in(held, _SECURE_BITS),
        number_in(thread if _SECCOMP in thread else {_SECCOMP: task.get(_OLD_SECCOMP, 0)}, _SECCOMP),
    )  # fmt: skip


def _filters(path: Path) -> Iterator[bytes]:
    for record in records(path, _SECCOMP_MAGIC) if path.exists() else ():
        for _, each in fields(record):
            for number, value in inner(each):
                if number == 1 and isinstance(value, bytes):
                    yield value


def _properties(path: Path) -> Iterator[str]:
    """Yield the names of properties; paths that lead out of a control group are refused."""
    for record in records(path, _CGROUP_MAGIC) if path.exists() else ():
        for number, value in fields(record):
            if number == _SETS:
                for member in _of(inner(value), _MEMBERS):
                    _check_path(*_of(inner(member), _PATH))
            elif number == _CONTROLLERS:
                for directory in _of(inner(value), _DIRECTORIES):
                    yield from _properties_below(inner(directory), 0)


def _properties_below(directory: list[Field], depth: int) -> Iterator[str]:
    if depth > _MOST_DEPTH:
        raise ValueError(f"control groups more than {_MOST_DEPTH} deep")
    _check_path(*_of(directory, _DIRECTORY))
    for each in _of(directory, _PROPERTIES):
        for name in _of(inner(each), _PROPERTY):
            text = name.decode(errors="replace") if isinstance(name, bytes) else ""
            if not _PROPERTY_NAME.fullmatch(text):
                raise ValueError(f"a property {shown(text, 80)} of a control group")
            yield text
    for child in _of(directory, _CHILDREN):
        yield from _properties_below(inner(child), depth + 1)


def _of(found: list[Field], number: int) -> list[int | bytes]:
    return [value for each, value in found if each == number]


def _check_path(*names: int | bytes) -> None:
    for name in names:
        if not isinstance(name, bytes) or b".." in name.split(b"/") or b"\0" in name:
            raise ValueError(f"a control group {shown(name, 80)}")
