"""Caps and weights by the cpu controller of control groups.

Version 1 has `cpu.cfs_quota_us` and `cpu.shares`, version 2 `cpu.max` and `cpu.weight` in a delegated subtree.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path

from node_agent.drivers.caps.protocol import PERIOD_S
from testbed.host.kernel_files import read_kernel_file

PERIOD_US = round(PERIOD_S * 1e6)
LEAST_QUOTA_US = 1000  # the kernel's own bound
LEAST_SHARES, MOST_SHARES = 2, 1 << 18  # of version 1, as the kernel has them
MOST_WEIGHT = 10_000  # of version 2; the least is 1
_EMPTY_WITHIN_S = 1.0


class CgroupCaps(ABC):
    """A group of this agent with one child per guest; the versions differ in how groups are made and quotas written."""

    name = "cgroup"
    members = "cgroup.procs"  # the file that lists the members of a group

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._most_cores: dict[str, float] = {}

    async def open(self) -> None:
        """See `Caps.open`."""
        await asyncio.to_thread(self._open)

    async def add(self, guest: str, pid: int, most_cores: float) -> None:
        """See `Caps.add`."""
        self._most_cores[guest] = most_cores
        await asyncio.to_thread(self._enter, self._folder / guest, pid)

    async def take_over(self, guest: str, pid: int, most_cores: float) -> None:
        """See `Caps.take_over`."""
        self._most_cores[guest] = most_cores
        await asyncio.to_thread(self._enter_again, self._folder / guest, pid)

    async def set(self, guest: str, cap_cores: float | None) -> float | None:
        """See `Caps.set`."""
        needed = cap_cores is not None and cap_cores < self._most_cores[guest]
        quota_us = max(LEAST_QUOTA_US, round(cap_cores * PERIOD_US)) if cap_cores is not None and needed else None
        found = await asyncio.to_thread(self._write_and_read, self._folder / guest, quota_us)
        return cap_cores if found is None and not needed else found

    def read(self, guest: str) -> float:
        """See `Caps.read`."""
        most_cores = self._most_cores[guest]
        found = read_cap(self._folder / guest)
        return most_cores if found is None else min(found, most_cores)

    def throttled_s(self, guest: str) -> float | None:
        """See `Caps.throttled_s`; the kernel's counter is a sum over cores, so it needs a guest with one thread."""
        return read_throttled_s(self._folder / guest) if self._most_cores[guest] == 1 else None

    async def remove(self, guest: str) -> None:
        """See `Caps.remove`."""
        if self._most_cores.pop(guest, None) is not None:
            await asyncio.to_thread(self._drop, self._folder / guest)

    async def close(self) -> None:
        """See `Caps.close`."""
        for guest in list(self._most_cores):
            await self.remove(guest)
        await asyncio.to_thread(self._close)

    async def bound(self, cores: float) -> None:
        """See `Weights.bound`: the quota of the agent's own group, which is written only if it is not in force."""
        quota_us = round(cores * PERIOD_US)
        with contextlib.suppress(FileNotFoundError):  # without the controller, writing fails and says so
            if read_cap(self._folder) == quota_us / PERIOD_US:
                return
        found = await asyncio.to_thread(self._write_and_read, self._folder, quota_us)
        if found is None or abs(found - cores) > 1 / PERIOD_US:
            raise OSError(f"{self._folder}: a quota of {cores:g} cores was read back as {found}")

    async def weigh(self, guest: str, part_frac: float) -> float:
        """See `Weights.weigh`."""
        if guest not in self._most_cores:
            raise KeyError(guest)
        await asyncio.to_thread(self.write_weight, self._folder / guest, part_frac)
        return self.weight(guest)

    def weight(self, guest: str) -> float:
        """See `Weights.weight`."""
        if guest not in self._most_cores:
            raise KeyError(guest)
        return read_weight(self._folder / guest)

    @abstractmethod
    def write_quota(self, folder: Path, quota_us: int | None) -> None:
        """Write the quota of a group; None is no quota."""

    @abstractmethod
    def write_weight(self, folder: Path, part_frac: float) -> None:
        """Write the weight of a group as a part of the greatest one."""

    def prepare(self) -> None:
        """Make the agent's group."""
        self.make(self._folder)

    def make(self, folder: Path) -> None:
        """Make a group, if it is not there."""
        folder.mkdir(exist_ok=True)

    def _open(self) -> None:
        self.prepare()
        self._remove_stale()
        trial = self._folder / "trial"
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as sleeper:  # noqa: S607  # ends with its input
            try:
                self._enter(trial, sleeper.pid)
                found = self._write_and_read(trial, PERIOD_US // 2)
                if found != 0.5:
                    raise OSError(f"{trial}: a quota of 0.5 cores was read back as {found}")
            finally:
                sleeper.kill()
                sleeper.wait()
                self._drop(trial)

    def _remove_stale(self) -> None:
        """Remove groups of killed agents: their names end in the process id of an agent that no longer exists."""
        for path in self._folder.parent.glob("dfrs-*"):
            pid = path.name.rpartition("-")[2]
            if pid.isdecimal() and not Path("/proc", pid).exists():
                for child in [inside for inside in path.iterdir() if inside.is_dir()]:
                    self._drop(child)
                self._drop(path)

    def _enter(self, folder: Path, pid: int) -> None:
        self.make(folder)
        self.write_quota(folder, None)
        (folder / "cgroup.procs").write_text(str(pid), encoding="ascii")
        if str(pid) not in self._inside(folder):
            raise OSError(f"{folder}: process {pid} did not enter it")

    def _enter_again(self, folder: Path, pid: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            if str(pid) in self._inside(folder):
                return
        self._enter(folder, pid)

    def _inside(self, folder: Path) -> list[str]:
        return (folder / self.members).read_text(encoding="ascii").split()

    def _write_and_read(self, folder: Path, quota_us: int | None) -> float | None:
        self.write_quota(folder, quota_us)
        return read_cap(folder)

    def _drop(self, folder: Path) -> None:
        """Remove a group; processes that still run in it move to the agent's own group, without a quota."""
        deadline_s = time.monotonic() + _EMPTY_WITHIN_S
        while folder.exists() and time.monotonic() < deadline_s:
            with contextlib.suppress(OSError):
                folder.rmdir()
                return
            with contextlib.suppress(OSError):
                for pid in self._inside(folder):
                    (self._folder.parent / "cgroup.procs").write_text(pid, encoding="ascii")
            time.sleep(0.005)  # in a thread; the kernel sends no event when a group becomes empty

    def _close(self) -> None:
        self._drop(self._folder)


class CgroupV1Caps(CgroupCaps):
    """Quotas in a child of the group that the agent runs in."""

    name = "cgroup1"

    def write_quota(self, folder: Path, quota_us: int | None) -> None:
        """See `CgroupCaps.write_quota`."""
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US), encoding="ascii")
        (folder / "cpu.cfs_quota_us").write_text(str(-1 if quota_us is None else quota_us), encoding="ascii")

    def write_weight(self, folder: Path, part_frac: float) -> None:
        """See `CgroupCaps.write_weight`."""
        (folder / "cpu.shares").write_text(str(max(LEAST_SHARES, round(part_frac * MOST_SHARES))), encoding="ascii")


class CgroupV2Caps(CgroupCaps):
    """Quotas below the group that the agent runs in, which must be delegated to it (systemd: `Delegate=cpu`).

    The groups are threaded, as only then their parent may hold processes itself: this agent, the keeper of its guests,
    and the next agent, which systemd starts there while guests of a killed agent still run.
    """

    name = "cgroup2"
    members = "cgroup.threads"

    def prepare(self) -> None:
        """Make the agent's group, and pass the controller on to the groups in it."""
        super().prepare()
        for folder in (self._folder.parent, self._folder):
            (folder / "cgroup.subtree_control").write_text("+cpu", encoding="ascii")

    def make(self, folder: Path) -> None:
        """See `CgroupCaps.make`."""
        super().make(folder)
        (folder / "cgroup.type").write_text("threaded", encoding="ascii")

    def write_quota(self, folder: Path, quota_us: int | None) -> None:
        """See `CgroupCaps.write_quota`."""
        quota = "max" if quota_us is None else str(quota_us)
        (folder / "cpu.max").write_text(f"{quota} {PERIOD_US}", encoding="ascii")

    def write_weight(self, folder: Path, part_frac: float) -> None:
        """See `CgroupCaps.write_weight`."""
        (folder / "cpu.weight").write_text(str(max(1, round(part_frac * MOST_WEIGHT))), encoding="ascii")

    def _close(self) -> None:
        super()._close()
        with contextlib.suppress(OSError):  # groups of another agent may use it
            (self._folder.parent / "cgroup.subtree_control").write_text("-cpu", encoding="ascii")


def read_cap(folder: Path) -> float | None:
    """Return the quota of a group of either version in cores, None without one; raises `OSError`.

    Another process may have changed the period, too.
    """
    try:
        quota, period = read_kernel_file(f"{folder}/cpu.max").split()
    except FileNotFoundError:
        quota = read_kernel_file(f"{folder}/cpu.cfs_quota_us")
        period = read_kernel_file(f"{folder}/cpu.cfs_period_us")
    return None if quota == "max" or int(quota) < 0 else int(quota) / int(period)


def read_throttled_s(folder: Path) -> float:
    """Return the total throttled time of a group of either version, in seconds; raises `OSError`."""
    counts = dict(line.split() for line in read_kernel_file(f"{folder}/cpu.stat").splitlines())
    if "throttled_usec" in counts:
        return int(counts["throttled_usec"]) / 1e6
    return int(counts.get("throttled_time", "0")) / 1e9


def read_weight(folder: Path) -> float:
    """Return the weight of a group of either version as a part of the greatest one; raises `OSError`."""
    try:
        return int(read_kernel_file(f"{folder}/cpu.weight")) / MOST_WEIGHT
    except FileNotFoundError:
        return int(read_kernel_file(f"{folder}/cpu.shares")) / MOST_SHARES
