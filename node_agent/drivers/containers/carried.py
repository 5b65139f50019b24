"""Permitted contents of an image of a whole container: processes without privileges, in a container like our own.

CRIU reads the files as root. The files determine the user and the capabilities of the processes, and the mounts. CRIU
also starts programs (iptables, ip, nft) with files of a network, which a container of ours does not have. So only files
that CRIU writes of such a container are extracted. Its processes must have our own user and no capability, and its
mounts must be those of a container that this agent has made itself.

CRIU's formats: criu/image-desc.c, images/core.proto, images/creds.proto, images/mnt.proto.
"""

from __future__ import annotations

import os
import re
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from node_agent.drivers.containers.criu_records import fields, inner, number_in, numbers, records
from node_agent.drivers.protocol import SuspectError
from testbed.errors import shown

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
_NETWORK = re.compile(
    r"(netdev|netns|netns-ct|netns-exp|ifaddr|route|route6|rule|iptables|ip6tables|nftables)-[0-9]{1,20}\.img"
)
_BESIDE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}\.(json|log)")  # the engine's own notes
_CORE = re.compile(r"core-[0-9]+\.img")
_MOUNTS = re.compile(r"mountpoints-[0-9]+\.img")
_CORE_MAGIC, _MOUNTS_MAGIC = 0x55053847, 0x55563928
_THREAD_CORE, _CREDS = 5, 10  # fields of a core, and of a thread in it
_USERS, _GROUPS = (1, 3, 5, 7), (2, 4, 6, 8, 14)  # real, effective, saved, of files; further groups
_CAPABILITIES = (9, 10, 11, 12)
_SECURE_BITS, _PROFILE, _NO_NEW_PRIVILEGES = 13, 15, 18
_OWN_PROFILE = b"docker-default"
_KIND, _ID, _PARENT, _FLAGS, _ROOT, _PLACE, _SOURCE, _OPTIONS = 1, 2, 4, 5, 6, 7, 8, 9  # of a mount
_SHARED, _MASTER, _PLUGIN, _EXTERNAL, _INTERNAL, _DELETED, _SUPER_FLAGS, _KEY = 10, 11, 12, 13, 15, 16, 17, 18
_LIMITING = 0xF  # read-only, no set-user-id, no devices, no programs [mount(2)]
_CONTAINER = re.compile("[0-9a-f]{64}")


class Mount(NamedTuple):
    """One mount as CRIU would make it, without what differs from node to node: numbers, and a container's id.

    CRIU mounts an entry with a `key` from the path that this node's engine gives for that key. Its root, source and
    options then describe the file system that the path lies on, and are not compared.
    """

    place: str
    kind: int
    limits: int
    part: str
    key: str
    below: tuple[str, ...]  # places of the mount with its parent's number
    source: str
    options: str
    ties: tuple[bool, ...]  # to other mounts: shared, subordinate, by another namespace; its root was deleted


Mounts = Counter[Mount]


def is_left_out(name: str) -> bool:
    """Return whether a file describes a network, which a container of ours does not have: CRIU restores without it."""
    return bool(_NETWORK.fullmatch(name))


def may_be_carried(name: str) -> bool:
    """Return whether a file of that path may be in an image: a file of CRIU's, or the engine's notes in any folder."""
    folder, _, last = name.rpartition("/")
    return bool(_BESIDE.fullmatch(last) or (not folder and _IMAGE.fullmatch(last)))


def check_rights(folder: Path) -> None:
    """Raise `DriverError` unless all threads that CRIU would make from a folder have our user and no capability."""
    for path in _matching(folder, _CORE):
        try:
            _check_core(path)
        except (ValueError, struct.error, IndexError) as error:
            raise SuspectError(f"an image holds {path.name!r}, which is no process of CRIU's: {error}") from None


def mounts_of(folder: Path) -> Mounts:
    """Return the mounts that CRIU would make from a folder; raises `SuspectError`."""
    found: Mounts = Counter()
    for path in _matching(folder, _MOUNTS):
        try:
            # the last of a kind counts, as for CRIU
            told = [dict(fields(record)) for record in records(path, _MOUNTS_MAGIC)]
            places: dict[int, set[str]] = {}
            for each in told:
                places.setdefault(number_in(each, _ID), set()).add(_text(each, _PLACE))
            found.update(_mount(each, places) for each in told)
        except (ValueError, struct.error, IndexError) as error:
            raise SuspectError(f"an image holds {path.name!r}, which are no mounts of CRIU's: {error}") from None
    return found


def check_mounts(folder: Path, own: Mounts) -> None:
    """Raise `DriverError` unless the mounts that CRIU would make from a folder are those of a container of ours."""
    found = mounts_of(folder)
    for strange, words in ((found - own, "which a container of ours has not"), (own - found, "is missing")):
        for mount in strange:
            part = f"{mount.key or mount.part}, options {shown(mount.options, 80)}"
            raise SuspectError(
                f"an image's mounts: {shown(mount.place, 80)} (kind {mount.kind}, flags {mount.limits}, of "
                f"{shown(part, 200)}) {words}"
            )


def _matching(folder: Path, name: re.Pattern[str]) -> list[Path]:
    return sorted(path for path in folder.iterdir() if name.fullmatch(path.name))


def _check_core(path: Path) -> None:
    (record,) = records(path, _CORE_MAGIC)
    threads = [value for field, value in fields(record) if field == _THREAD_CORE]
    rights = [value for thread in threads for field, value in inner(thread) if field == _CREDS]
    if len(threads) != 1 or len(rights) != 1:
        raise ValueError(f"{len(rights)} sets of rights: expected one")
    held = inner(rights[0])
    if missing := {*_USERS, *_GROUPS[:4]} - {field for field, _ in held}:
        raise ValueError(f"rights without fields {sorted(missing)}")
    for field, value in held:
        if wrong := _wrong(field, value):
            raise SuspectError(f"an image holds {path.name!r}, a process with {wrong}")


def _wrong(field: int, value: int | bytes) -> str:
    """Return the property that a process must not have, or an empty string."""
    if field == _SECURE_BITS:
        return ""
    if field == _PROFILE:
        return "" if value in (b"", _OWN_PROFILE) else f"security profile {value!r}: expected {_OWN_PROFILE!r}"
    expected = {
        **dict.fromkeys(_USERS, ("user", os.getuid())), **dict.fromkeys(_GROUPS, ("group", os.getgid())),
        **dict.fromkeys(_CAPABILITIES, ("capabilities", 0)), _NO_NEW_PRIVILEGES: ("no_new_privs", 1),
    }  # fmt: skip
    if field not in expected:
        return f"rights of an unknown kind ({field})"
    what, right = expected[field]
    return "" if set(numbers(value)) <= {right} else f"{what} {numbers(value)}: expected {right}"


def _mount(told: dict[int, int | bytes], places: Mapping[int, set[str]]) -> Mount:
    if told.get(_PLUGIN):
        raise ValueError("a mount by a plug-in")
    limits = (number_in(told, _FLAGS) | number_in(told, _SUPER_FLAGS)) & _LIMITING
    place, key = _text(told, _PLACE), _text(told, _KEY)
    given = bool(told.get(_EXTERNAL)) or bool(key)
    own = not given and place != "./"  # the root is always the engine's
    return Mount(
        place, number_in(told, _KIND), limits,
        "what the engine gives" if given else _CONTAINER.sub("ID", _text(told, _ROOT)),
        f"{bool(told.get(_EXTERNAL))}:{_CONTAINER.sub('ID', key)}" if given else "",
        tuple(sorted(places.get(number_in(told, _PARENT), ()))),
        _CONTAINER.sub("ID", _text(told, _SOURCE)) if own else "",
        _CONTAINER.sub("ID", _text(told, _OPTIONS)) if own else "",
        tuple(bool(number_in(told, field)) for field in (_SHARED, _MASTER, _INTERNAL, _DELETED)),
    )  # fmt: skip


def _text(told: dict[int, int | bytes], field: int) -> str:
    value = told.get(field, b"")
    if isinstance(value, int):
        raise ValueError(f"field {field} is no text")  # noqa: TRY004  # in a file
    return value.decode(errors="replace")
