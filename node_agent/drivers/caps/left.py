"""Control groups that killed agents left, wherever on the machine their groups are."""

from __future__ import annotations

import contextlib
from pathlib import Path

from node_agent.drivers.protocol import PREFIX


def left_groups(node: str, pid: int) -> list[Path]:
    """Return the groups that the agent of a node with this process id made; it must live no more."""
    name = f"{PREFIX}{node}-{pid}"
    return sorted(found for mount in _mounts().values() for found in mount.rglob(name) if found.is_dir())


def remove_group(folder: Path) -> bool:
    """Remove a group with those in it, unless a process is in one; return whether it is gone."""
    inside = [path for path in folder.rglob("*") if path.is_dir()]
    for path in [*sorted(inside, reverse=True), folder]:
        with contextlib.suppress(OSError):
            path.rmdir()
    return not folder.exists()


def _mounts() -> dict[str, Path]:
    """Return where each kind of hierarchy is mounted first: others are copies, in the roots of containers."""
    found: dict[str, Path] = {}
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and "cpu" in options.split(",")):
            found.setdefault(kind, Path(left.split()[4]))
    return found
