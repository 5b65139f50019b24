"""Caps by control groups: what versions 1 and 2 have in common."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path

from node_agent.drivers.caps.protocol import PERIOD_S

PERIOD_US = round(PERIOD_S * 1e6)
LEAST_QUOTA_US = 1000  # the kernel's own bound
_EMPTY_WITHIN_S = 1.0


class CgroupCaps(ABC):
    """A group of this agent with a child a guest; versions differ in how groups are made and quotas written."""

    name = "cgroup"

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

    async def set(self, guest: str, cap_cores: float | None) -> float | None:
        """See `Caps.set`."""
        needed = cap_cores is not None and cap_cores < self._most_cores[guest]
        quota_us = max(LEAST_QUOTA_US, round(cap_cores * PERIOD_US)) if cap_cores is not None and needed else None
        found = await asyncio.to_thread(self._write_and_read, self._folder / guest, quota_us)
        return cap_cores if found is None and not needed else found

    def read(self, guest: str) -> float:
        """See `Caps.read`."""
        most_cores = self._most_cores[guest]
        found = self.read_cap(self._folder / guest)
        return most_cores if found is None else min(found, most_cores)

    async def remove(self, guest: str) -> None:
        """See `Caps.remove`."""
        if self._most_cores.pop(guest, None) is not None:
            await asyncio.to_thread(self._drop, self._folder / guest)

    async def close(self) -> None:
        """See `Caps.close`."""
        for guest in list(self._most_cores):
            await self.remove(guest)
        await asyncio.to_thread(self._close)

    @abstractmethod
    def write_quota(self, folder: Path, quota_us: int | None) -> None:
        """Write the quota of a group; None is no quota."""

    @abstractmethod
    def read_cap(self, folder: Path) -> float | None:
        """Read the quota of a group as cores: anybody may have changed the period, too. None is no quota."""

    def prepare(self) -> None:
        """Make the agent's group."""
        self._folder.mkdir(exist_ok=True)

    def home(self) -> Path:
        """The group that the agent itself is in."""
        return self._folder.parent

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
        """Remove groups of agents that were killed: their names end in the process id of an agent that is no more."""
        for path in self._folder.parent.glob("dfrs-*"):
            pid = path.name.rpartition("-")[2]
            if pid.isdecimal() and not Path("/proc", pid).exists():
                for child in [inside for inside in path.iterdir() if inside.is_dir()]:
                    self._drop(child)
                self._drop(path)

    def _enter(self, folder: Path, pid: int) -> None:
        folder.mkdir(exist_ok=True)
        self.write_quota(folder, None)
        (folder / "cgroup.procs").write_text(str(pid), encoding="ascii")
        if str(pid) not in (folder / "cgroup.procs").read_text(encoding="ascii").split():
            raise OSError(f"{folder}: process {pid} did not enter it")

    def _write_and_read(self, folder: Path, quota_us: int | None) -> float | None:
        self.write_quota(folder, quota_us)
        return self.read_cap(folder)

    def _drop(self, folder: Path) -> None:
        """Remove a group; processes that live on in it go on where the agent is, without a quota."""
        deadline_s = time.monotonic() + _EMPTY_WITHIN_S
        while folder.exists() and time.monotonic() < deadline_s:
            with contextlib.suppress(OSError):
                folder.rmdir()
                return
            with contextlib.suppress(OSError):
                for pid in (folder / "cgroup.procs").read_text(encoding="ascii").split():
                    (self.home() / "cgroup.procs").write_text(pid, encoding="ascii")
            time.sleep(0.005)  # in a thread; the kernel tells no event of a group that empties

    def _close(self) -> None:
        self._drop(self._folder)
