"""Control groups that killed agents left, wherever on the machine their groups are."""

from __future__ import annotations

import contextlib
from pathlib import Path

from node_agent.drivers.caps.mounts import mount_points
from node_agent.drivers.protocol import PREFIX


def left_groups(node: str, pid: int) -> list[Path]:
    """Return the groups made by the agent of a node with this process id; that agent must be dead."""
    name = f"{PREFIX}{node}-{pid}"
    points = mount_points(Path("/proc/self/mountinfo").read_text(encoding="utf-8")).values()
    return sorted(found for _, mount in points for found in mount.rglob(name) if found.is_dir())


def remove_group(folder: Path) -> bool:
    """Remove a group and its subgroups, unless one holds a process; return whether it is gone."""
    inside = [path for path in folder.rglob("*") if path.is_dir()]
    for path in [*sorted(inside, reverse=True), folder]:
        with contextlib.suppress(OSError):
            path.rmdir()
    return not folder.exists()
