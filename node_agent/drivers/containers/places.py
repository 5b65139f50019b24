"""Namespaces, security module and control group of a container as CRIU records them (`inventory`, `ids`, `core`).

CRIU puts a process into a new namespace only where its number in `ids` differs from that of CRIU's own process, given
in `inventory`. With equal numbers the process is restored beside CRIU, outside of the container: as our user, in the
machine's file system. So each process must differ in all namespaces in which processes of our own containers differ.

Formats: images/inventory.proto and core.proto of CRIU, get_clone_mask() in criu/pstree.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from node_agent.drivers.containers.criu_records import Field, fields, inner, records
from testbed.errors import shown

_INVENTORY_MAGIC, _PSTREE_MAGIC, _IDS_MAGIC, _CORE_MAGIC = 0x58313116, 0x50273030, 0x54432030, 0x55053847
_ROOT_IDS, _ROOT_GROUP, _UPTIME = 3, 5, 8  # of an inventory
_RUN = re.compile(rb"[0-9a-f-]{36}")  # the name of a run of CRIU, which passes it to nft
_PID = 1  # of an entry of pstree
_TASK, _GROUP = 3, 9  # of a core, and of a task in it
_KINDS = {
    1: "memory", 2: "files", 3: "file system", 4: "signals", 5: "pid namespace", 6: "network namespace",
    7: "ipc namespace", 8: "uts namespace", 9: "mount namespace", 10: "user namespace", 11: "cgroup namespace",
    12: "time namespace",
}  # fmt: skip
_NAMESPACES = frozenset(range(5, 13))


class Places(NamedTuple):
    """The namespaces of a container's processes that differ from CRIU's own, and the rest of its inventory."""

    apart: frozenset[str] = frozenset()
    own_group: bool = False  # no process stays in CRIU's own control group
    inventory: tuple[Field, ...] = ()  # without numbers that differ each time

    def difference(self, own: Places) -> str:
        """Return the differences from `own` in one line, or an empty string."""
        if missing := own.apart - self.apart:
            return f"an image's processes share with CRIU: {', '.join(sorted(missing))}; expected their own"
        if more := self.apart - own.apart:
            return f"an image's processes have of their own: {', '.join(sorted(more))}; expected CRIU's, as ours"
        if self.own_group != own.own_group:
            return "an image's processes are in CRIU's control group: expected that of their container"
        if self.inventory != own.inventory:
            return f"an image's inventory says {shown(self.inventory, 200)}: expected {shown(own.inventory, 200)}"
        return ""


def places_of(folder: Path) -> Places:
    """Return the places in CRIU's files; empty if these files are missing.

    Raises `ValueError`, `IndexError`, `struct.error` or `FileNotFoundError` for what CRIU would not write.
    """
    inventory = folder / "inventory.img"
    listed = list(_pids(folder / "pstree.img"))
    if not inventory.exists() and not listed:
        return Places()
    pids, first = set(listed), listed[0] if listed else 0  # CRIU makes the first one, and its children below it
    (record,) = records(inventory, _INVENTORY_MAGIC, common=False)
    told = _once(list(fields(record)))
    root = _once(inner(told.pop(_ROOT_IDS, b"")))
    group = told.pop(_ROOT_GROUP, 0)
    told.pop(_UPTIME, None)
    plain = {
        number: value for number, value in told.items() if not (isinstance(value, bytes) and _RUN.fullmatch(value))
    }
    if not pids:
        raise ValueError("no process")
    found = {pid: _ids(folder, pid) for pid in sorted(pids) if pid == first or (folder / f"ids-{pid}.img").exists()}
    if len({tuple(sorted((kind, ids[kind]) for kind in ids if kind in _NAMESPACES)) for ids in found.values()}) > 1:
        raise ValueError("processes in several namespaces of one kind")
    apart = frozenset(
        words for kind, words in _KINDS.items() if all(ids.get(kind, 0) != root.get(kind, 0) for ids in found.values())
    )
    groups = [_group(folder, pid) for pid in found]
    return Places(apart, group not in groups and 0 not in groups, tuple(sorted(plain.items())))


def _ids(folder: Path, pid: int) -> dict[int, int | bytes]:
    path = folder / f"ids-{pid}.img"
    if not path.exists():
        raise ValueError(f"process {pid} without {path.name}: expected its namespaces")
    (record,) = records(path, _IDS_MAGIC)
    ids = _once(list(fields(record)))
    if strange := {*ids} - {*_KINDS}:
        raise ValueError(f"{path.name} with fields {sorted(strange)}")
    return ids


def _group(folder: Path, pid: int) -> int | bytes:
    """Return the number of a process's control groups."""
    (record,) = records(folder / f"core-{pid}.img", _CORE_MAGIC)
    task = _once(each for each in fields(record) if each[0] == _TASK).get(_TASK, b"")
    return _once(each for each in inner(task) if each[0] == _GROUP).get(_GROUP, 0)


def _pids(path: Path) -> Iterator[int]:
    for record in records(path, _PSTREE_MAGIC) if path.exists() else ():
        (pid,) = [value for number, value in fields(record) if number == _PID]
        if not isinstance(pid, int):
            raise ValueError("a process without a number")  # noqa: TRY004  # in a file
        yield pid


def _once(found: Iterable[Field]) -> dict[int, int | bytes]:
    """Return fields by number; a repeated field is refused, because it could be read in two ways."""
    told: dict[int, int | bytes] = {}
    for number, value in found:
        if number in told:
            raise ValueError(f"field {number} twice")
        told[number] = value
    return told
