"""Caps by the cpu controller of control groups, version 2: `cpu.max` in a delegated subtree."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from node_agent.drivers.caps.cgroup import PERIOD_US, CgroupCaps

LEAF_ENDING = "-agent"  # of the name of the group that an agent moves itself to


class CgroupV2Caps(CgroupCaps):
    """Quotas below the group that the agent runs in, which must be delegated to it (systemd: `Delegate=cpu`).

    A group with children that are controlled may hold no process itself, so the agent moves to a leaf beside them.
    """

    name = "cgroup2"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._own = folder.parent
        self._leaf = folder.with_name(folder.name + LEAF_ENDING)
        self._moved = False

    def prepare(self) -> None:
        """Move the agent to its leaf and pass the controller on."""
        if (self._own / "cgroup.type").exists():  # the root of all groups has none, and no such rule
            self._leaf.mkdir(exist_ok=True)
            (self._leaf / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
            self._moved = True
        (self._own / "cgroup.subtree_control").write_text("+cpu", encoding="ascii")
        super().prepare()
        (self._folder / "cgroup.subtree_control").write_text("+cpu", encoding="ascii")

    def home(self) -> Path:
        """See `CgroupCaps.home`."""
        return self._leaf if self._moved else self._own

    def write_quota(self, folder: Path, quota_us: int | None) -> None:
        """See `CgroupCaps.write_quota`."""
        quota = "max" if quota_us is None else str(quota_us)
        (folder / "cpu.max").write_text(f"{quota} {PERIOD_US}", encoding="ascii")

    def read_cap(self, folder: Path) -> float | None:
        """See `CgroupCaps.read_cap`."""
        return read_cap(folder)

    def _close(self) -> None:
        super()._close()
        if self._moved:
            with contextlib.suppress(OSError):  # others may use the subtree, then the agent stays in its leaf
                control = self._own / "cgroup.subtree_control"
                control.write_text("-cpu", encoding="ascii")
                if "memory" in control.read_text(encoding="ascii").split():  # `node_agent.bounds`
                    control.write_text("-memory", encoding="ascii")
                self._moved = False
                self._drop(self._leaf)


def read_cap(folder: Path) -> float | None:
    """Return the quota of a group in cores, None without one; raises `OSError`."""
    quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
    return None if quota == "max" else int(quota) / int(period)
