"""Caps by the engine's quota of a container, read back from its control group."""

from __future__ import annotations

from pathlib import Path

from node_agent.drivers.caps.cgroup import read_cap, read_throttled_s
from node_agent.drivers.caps.mounts import group_of
from node_agent.drivers.caps.protocol import Caps
from node_agent.drivers.containers.engine import Engine


class ContainerCaps:
    """See `Caps`: all processes in a guest's container are under its cap. `bare` caps processes outside containers."""

    name = "docker"

    def __init__(self, engine: Engine, bare: Caps) -> None:
        self._engine = engine
        self._bare = bare
        self._containers: dict[str, str] = {}
        self._pids: dict[str, int] = {}
        self._most_cores: dict[str, float] = {}
        self._groups: dict[str, Path] = {}

    async def open(self) -> None:
        """See `Caps.open`: `bare` is open, and the engine was asked already."""

    def enclose(self, guest: str, container: str) -> None:
        """Register a guest's container, before anything runs in it."""
        self._containers[guest] = container

    def container(self, guest: str) -> str | None:
        """Return a guest's container, if it is in one."""
        return self._containers.get(guest)

    async def add(self, guest: str, pid: int, most_cores: float) -> None:
        """See `Caps.add`."""
        if guest not in self._containers:
            await self._bare.add(guest, pid, most_cores)
            return
        self._pids[guest] = pid
        self._most_cores[guest] = most_cores

    async def take_over(self, guest: str, pid: int, most_cores: float) -> None:
        """See `Caps.take_over`; the engine has kept the quota."""
        if guest in self._containers:
            await self.add(guest, pid, most_cores)
        else:
            await self._bare.take_over(guest, pid, most_cores)

    async def set(self, guest: str, cap_cores: float | None) -> float | None:
        """See `Caps.set`."""
        if guest not in self._containers:
            return await self._bare.set(guest, cap_cores)
        needed = cap_cores is not None and cap_cores < self._most_cores[guest]
        # the group that guests with shares are in allows no quota above its own
        await self._engine.set_cap(self._containers[guest], cap_cores if needed else None)
        found = self._quota(guest)
        return self._most_cores[guest] if found is None and cap_cores is not None else found

    def read(self, guest: str) -> float:
        """See `Caps.read`."""
        if guest not in self._containers:
            return self._bare.read(guest)
        most_cores, found = self._most_cores[guest], self._quota(guest)
        return most_cores if found is None else min(found, most_cores)

    def throttled_s(self, guest: str) -> float | None:
        """See `Caps.throttled_s`."""
        if guest not in self._containers:
            return self._bare.throttled_s(guest)
        return read_throttled_s(self.group(guest)) if self._most_cores[guest] == 1 else None

    def group(self, guest: str) -> Path:
        """Return the control group of a guest's container; raises `OSError`, or `KeyError` as `read` does."""
        folder = self._find_group(guest)
        if folder is None:
            raise FileNotFoundError(f"guest {guest}: its container has no control group with a cpu controller")
        return folder

    def _find_group(self, guest: str) -> Path | None:
        folder = self._groups.get(guest) or _group_of(self._pids[guest])
        if folder is not None:
            self._groups[guest] = folder
        return folder

    def _quota(self, guest: str) -> float | None:
        folder = self._find_group(guest)
        return None if folder is None else read_cap(folder)

    async def remove(self, guest: str) -> None:
        """See `Caps.remove`: the cap goes with the container."""
        if guest not in self._containers:
            await self._bare.remove(guest)
        for known in (self._containers, self._pids, self._most_cores, self._groups):
            known.pop(guest, None)

    async def close(self) -> None:
        """See `Caps.close`."""
        await self._bare.close()


def _group_of(pid: int) -> Path | None:
    """Return the control group whose quota a process is under, None if there is none; raises `OSError`."""
    v2, v1 = group_of("cgroup2", pid), group_of("cgroup", pid)
    if v1 is not None and (v1 / "cpu.cfs_quota_us").exists():
        return v1
    if v2 is not None and (v2 / "cpu.max").exists():
        return v2
    return None
