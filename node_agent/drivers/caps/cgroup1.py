"""Caps by the cpu controller of control groups, version 1: `cpu.cfs_quota_us`."""

from __future__ import annotations

from pathlib import Path

from node_agent.drivers.caps.cgroup import PERIOD_US, CgroupCaps


class CgroupV1Caps(CgroupCaps):
    """Quotas in a child of the group that the agent runs in."""

    name = "cgroup1"

    def write_quota(self, folder: Path, quota_us: int | None) -> None:
        """See `CgroupCaps.write_quota`."""
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US), encoding="ascii")
        (folder / "cpu.cfs_quota_us").write_text(str(-1 if quota_us is None else quota_us), encoding="ascii")

    def read_cap(self, folder: Path) -> float | None:
        """See `CgroupCaps.read_cap`."""
        return read_cap(folder)


def read_cap(folder: Path) -> float | None:
    """Return the quota of a group in cores, None without one; raises `OSError`."""
    quota_us = int((folder / "cpu.cfs_quota_us").read_text(encoding="ascii"))
    return None if quota_us < 0 else quota_us / int((folder / "cpu.cfs_period_us").read_text(encoding="ascii"))
