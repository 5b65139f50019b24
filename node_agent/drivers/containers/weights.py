"""Weights of containers: the cpu controller of their control groups, in one group that limits all of a node.

Weights are written into the groups' own files. The engine could set them, but its scale differs from that of control
groups version 2, and the conversion depends on the version of runc: the weight that was read back could not be compared
with the requested one. The engine changes no weight when it sets a cap or a memory limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from node_agent.drivers.caps.cgroup import CgroupCaps, CgroupV1Caps, CgroupV2Caps, read_weight
from node_agent.drivers.caps.mounts import Hierarchy, hierarchies

_TRIAL = "trial"
_TRIAL_FRAC = 0.5
_EMPTY_WITHIN_S = 1.0


class ContainerWeights:
    """See `Weights`. `path` is the group of the node's containers, below the root of every hierarchy.

    `group_of` returns the control group of a guest's container; it raises `OSError`, or `KeyError` for a guest that was
    not added yet.
    """

    def __init__(self, path: str, group_of: Callable[[str], Path], mountinfo: str) -> None:
        """Find the hierarchies in the text of /proc/self/mountinfo; raises `OSError` if none has a cpu controller."""
        self.path = path
        self._group_of = group_of
        self._hierarchies = hierarchies(mountinfo)
        there = [one for one in self._hierarchies if "cpu" in one.controllers] or [
            one for one in self._hierarchies if not one.controllers
        ]
        if not there:
            raise FileNotFoundError("no hierarchy of control groups with a cpu controller is mounted")
        self._cpu = there[0]
        self._files: CgroupCaps = (CgroupV1Caps if self._cpu.controllers else CgroupV2Caps)(self.folder)

    @property
    def folder(self) -> Path:
        """The group of the node's containers in the hierarchy with the cpu controller."""
        return self._cpu.folder(self.path)

    async def open(self, cores: float) -> None:
        """Make the group, bound it, and prove that a weight in it can be set and read back; raises `OSError`."""
        await asyncio.to_thread(self._make)
        await self.bound(cores)
        await asyncio.to_thread(self._try)

    def _make(self) -> None:
        """Make the group and those above it; in version 2 the controller must be passed on from each to the next."""
        above = [folder for folder in reversed(self.folder.parents) if folder.is_relative_to(self._cpu.point)]
        for folder in (*above, self.folder):
            folder.mkdir(exist_ok=True)
            if not self._cpu.controllers:
                (folder / "cgroup.subtree_control").write_text("+cpu", encoding="ascii")

    def _try(self) -> None:
        trial = self.folder / _TRIAL
        trial.mkdir(exist_ok=True)
        try:
            self._files.write_weight(trial, _TRIAL_FRAC)
            if (found := read_weight(trial)) != _TRIAL_FRAC:
                raise OSError(f"{trial}: a weight of {_TRIAL_FRAC} was read back as {found}")
        finally:
            trial.rmdir()

    async def bound(self, cores: float) -> None:
        """See `Weights.bound`: the quota of the group."""
        await self._files.bound(cores)

    async def weigh(self, guest: str, part_frac: float) -> float:
        """See `Weights.weigh`."""
        folder = self._inside(guest)
        await asyncio.to_thread(self._files.write_weight, folder, part_frac)
        return read_weight(folder)

    def weight(self, guest: str) -> float:
        """See `Weights.weight`."""
        return read_weight(self._inside(guest))

    def _inside(self, guest: str) -> Path:
        """Return the group of a guest's container; a weight means nothing to guests elsewhere."""
        folder = self._group_of(guest)
        if folder.parent != self.folder:
            raise OSError(f"{folder}: expected a control group in {self.folder}, where the node's guests compete")
        return folder

    async def close(self) -> None:
        """Remove the group from all hierarchies, once the engine has removed those of the containers."""
        await asyncio.to_thread(_remove, self._hierarchies, self.path)


def _remove(there: list[Hierarchy], path: str) -> None:
    """Remove a group, which a container that has just ended may still occupy; one with a container in it stays."""
    folders = [one.folder(path) for one in there]
    deadline_s = time.monotonic() + _EMPTY_WITHIN_S
    while any(folder.exists() for folder in folders):
        for folder in folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
        if time.monotonic() > deadline_s:
            return
        time.sleep(0.005)  # in a thread; the kernel sends no event when a group becomes empty


def remove_left(parent: str, prefix: str, mountinfo: str) -> None:
    """Remove the groups in `parent` of agents that no longer exist: their names are `prefix` and a process id."""
    there = hierarchies(mountinfo)
    for found in {folder.name for one in there for folder in one.folder(parent).glob(f"{prefix}*")}:
        pid = found.removeprefix(prefix)
        if pid.isdecimal() and not Path("/proc", pid).exists():
            for one in there:
                with contextlib.suppress(OSError):
                    one.folder(f"{parent}/{found}").rmdir()
