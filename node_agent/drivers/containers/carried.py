"""What an image of a whole container may carry: processes without rights, in a container like our own.

CRIU reads the files as root. It gives processes the user and the capabilities that are written there, mounts what is
written there, and starts programs (iptables, ip, nft) with files of a network, which a container of ours does not have.
So only files that CRIU writes of such a container are laid out. Its processes must have our own user and no capability,
and its mounts must be those of a container that this agent has made itself.

CRIU's formats: criu/image-desc.c, images/core.proto, images/creds.proto, images/mnt.proto.
"""

from __future__ import annotations

import os
import re
import struct
from collections import Counter
from pathlib import Path

from node_agent.drivers.containers.criu_records import fields, inner, numbers, records
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
_KIND, _FLAGS, _ROOT, _PLACE, _PLUGIN, _EXTERNAL, _SUPER_FLAGS, _KEY = 1, 5, 6, 7, 12, 13, 17, 18  # of a mount
_LIMITING = 0xF  # read-only, no set-user-id, no devices, no programs [mount(2)]
_CONTAINER = re.compile("[0-9a-f]{64}")

Mounts = Counter[tuple[str, int, int, str]]


def is_left_out(name: str) -> bool:
    """Return whether a file is of the network that a container of ours has not: CRIU does without."""
    return bool(_NETWORK.fullmatch(name))


def may_be_carried(name: str) -> bool:
    """Return whether a file of that path may be in an image: CRIU's, or in whatever folder the engine's notes."""
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
    """Return the mounts that CRIU would make from a folder; raises `SuspectError`.

    Each is its place, the kind of its file system, how it is limited, and which part of the file system it is, or
    that whoever makes the container says so.
    """
    found: Mounts = Counter()
    for path in _matching(folder, _MOUNTS):
        try:
            for record in records(path, _MOUNTS_MAGIC):
                found[_mount(record)] += 1
        except (ValueError, struct.error, IndexError) as error:
            raise SuspectError(f"an image holds {path.name!r}, which are no mounts of CRIU's: {error}") from None
    return found


def check_mounts(folder: Path, own: Mounts) -> None:
    """Raise `DriverError` unless the mounts that CRIU would make from a folder are those of a container of ours."""
    found = mounts_of(folder)
    for strange, words in ((found - own, "which a container of ours has not"), (own - found, "is missing")):
        for place, kind, limits, part in strange:
            raise SuspectError(
                f"an image's mounts: {shown(place, 80)} (kind {kind}, flags {limits}, of {shown(part, 80)}) {words}"
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
    """Return what a process must not have, or an empty string."""
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


def _mount(record: bytes) -> tuple[str, int, int, str]:
    told = dict(fields(record))  # the last of a kind counts, as for CRIU
    if told.get(_PLUGIN):
        raise ValueError("a mount by a plug-in")
    limits = (_number(told, _FLAGS) | _number(told, _SUPER_FLAGS)) & _LIMITING
    given = bool(told.get(_EXTERNAL)) or bool(told.get(_KEY))
    part = "what the engine gives" if given else _CONTAINER.sub("ID", _text(told, _ROOT))
    return _text(told, _PLACE), _number(told, _KIND), limits, part


def _number(told: dict[int, int | bytes], field: int) -> int:
    value = told.get(field, 0)
    if not isinstance(value, int):
        raise ValueError(f"field {field} is no number")  # noqa: TRY004  # in a file
    return value


def _text(told: dict[int, int | bytes], field: int) -> str:
    value = told.get(field, b"")
    if isinstance(value, int):
        raise ValueError(f"field {field} is no text")  # noqa: TRY004  # in a file
    return value.decode(errors="replace")
