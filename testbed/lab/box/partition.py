"""The capacity of a node: the control group of all its guests, in cgroup v1, v2, or the hybrid of both."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from testbed.errors import RunError, UserError
from testbed.lab.box.processes import ProcessId, identify, kill_all, wait_until
from testbed.lab.box.spec import BoxSpec, NodeSpec

SUFFIX = ".partition"  # libvirt adds it to the name of a partition
_CONTROLLERS = ("cpu", "cpuacct", "cpuset")
_PERIOD_US = 100_000
# Relative to a weight of 1024 of processes outside the lab, so that foreign load takes little CPU time from a node
# under measurement. The node's quota bounds the CPU time that it can take from those processes.
_SHARES = 65_536
# A nested hypervisor has no quota, because it would count throttled time as CPU time of its guests. Without a quota,
# the weight must leave some CPU time to the broker and the controller.
_NESTED_SHARES = 8_192
_WEIGHT_OF_SHARES = 100 / 1024  # the defaults of version 2 and of version 1
_EMPTY_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Mount points of the control group hierarchies: v1 by controller, and v2 if it is mounted."""

    v1: Mapping[str, Path]
    v2: Path | None

    @property
    def kind(self) -> Literal["v1", "hybrid", "v2"]:
        """The version that controls CPU time; `hybrid` is version 1 beside version 2 without a CPU controller."""
        if "cpu" in self.v1:
            return "v1" if self.v2 is None else "hybrid"
        return "v2"

    @property
    def roots(self) -> list[Path]:
        """All mount points in which a partition needs a folder."""
        return list(dict.fromkeys([*self.v1.values(), *([self.v2] if self.v2 is not None else [])]))


def hierarchies(mountinfo: str) -> Hierarchies:
    """Parse the hierarchies in the text of /proc/self/mountinfo; raises `UserError` if none controls CPU time."""
    v1: dict[str, Path] = {}
    v2 = None
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        mount_point = Path(left.split()[4])
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup2":
            v2 = v2 or mount_point
        elif kind == "cgroup":
            for controller in _CONTROLLERS:
                if controller in options.split(","):
                    v1.setdefault(controller, mount_point)
    missing = [controller for controller in _CONTROLLERS if controller not in v1]
    if missing and (v1 or v2 is None):
        raise UserError(f"control groups: no {', '.join(missing)} controller is mounted; a node's capacity needs it")
    return Hierarchies(v1, v2)


def here() -> Hierarchies:
    """Return the hierarchies of this machine."""
    return hierarchies(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Partition:
    """The control group of one node: a quota of its cores and the emulators' headroom, and a high weight.

    The group of a nested node has no quota, and a lower weight.
    """

    spec: BoxSpec
    node: NodeSpec

    @property
    def name(self) -> str:
        """See `Part.name`."""
        return f"partition {self.node.full_name}{SUFFIX}"

    @property
    def quota_us(self) -> int | None:
        """CPU time per period of 0.1 s, in microseconds; None is no limit."""
        return (
            None if self.node.is_nested else round(self.node.cpus * (1 + self.spec.emulator_headroom_frac) * _PERIOD_US)
        )

    def _settings(self, groups: Hierarchies) -> dict[Path, str]:
        name = self.node.full_name + SUFFIX
        quota_us = self.quota_us
        shares = _NESTED_SHARES if self.node.is_nested else _SHARES
        if groups.kind == "v2":
            limit = "max" if quota_us is None else str(quota_us)
            folder = _v2(groups) / name
            return {
                folder / "cpu.max": f"{limit} {_PERIOD_US}",
                folder / "cpu.weight": str(round(shares * _WEIGHT_OF_SHARES)),
            }
        cpu, cpuset = groups.v1["cpu"], groups.v1["cpuset"]
        return {
            **{cpuset / name / file: _text(cpuset / file) for file in ("cpuset.cpus", "cpuset.mems")},
            cpu / name / "cpu.cfs_period_us": str(_PERIOD_US),
            cpu / name / "cpu.cfs_quota_us": str(-1 if quota_us is None else quota_us),
            cpu / name / "cpu.shares": str(shares),
        }

    def there(self) -> bool:
        """See `Part.there`."""
        groups = here()
        folders = [root / (self.node.full_name + SUFFIX) for root in groups.roots]
        return all(folder.is_dir() for folder in folders) and have_values(self._settings(groups))

    def make(self) -> None:
        """See `Part.make`."""
        groups, name = here(), self.node.full_name + SUFFIX
        make_group(self.name, groups, [root / name for root in groups.roots], self._settings(groups), parent_of=name)

    def remove(self) -> list[str]:
        """See `Part.remove`."""
        return remove_partition(self.node.full_name + SUFFIX)


def have_values(settings: Mapping[Path, str]) -> bool:
    """Whether each file exists and has its value."""
    return all(path.is_file() and _text(path) == value for path, value in settings.items())


def make_group(
    part: str, groups: Hierarchies, folders: Iterable[Path], settings: Mapping[Path, str], parent_of: str = ""
) -> None:
    """Create the folders of a control group and write its settings; raises `RunError` with the name of the part.

    In cgroup v2 the controllers are also enabled for the groups within the group `parent_of`, if it is given.
    """
    try:
        for folder in folders:
            folder.mkdir(exist_ok=True)
        if groups.kind == "v2":
            root = _v2(groups)
            for parent in (root, root / parent_of) if parent_of else (root,):
                (parent / "cgroup.subtree_control").write_text("+cpu +cpuset", encoding="ascii")
        for path, value in settings.items():
            path.write_text(value, encoding="ascii")
    except OSError as error:
        raise RunError(f"{part}: {error.filename or ''}: {error.strerror}") from error
    if not have_values(settings):
        raise RunError(f"{part}: the kernel did not accept its settings")


def join_partition(node: str, pid: int) -> None:
    """Move a process to the partition of a node, given by its full name; raises `OSError` if there is none."""
    for root in here().roots:
        (root / (node + SUFFIX) / "cgroup.procs").write_text(str(pid), encoding="ascii")


def partitions() -> list[str]:
    """Return the names of all partitions on the machine that may belong to labs."""
    return sorted({path.name for root in here().roots for path in root.glob(f"dfrs-*{SUFFIX}")})


def remove_partition(name: str) -> list[str]:
    """Kill the processes in a partition and remove it, if it exists; raises `RunError`."""
    folders = [folder for folder in (root / name for root in here().roots) if folder.is_dir()]
    killed = 0
    for folder in folders:
        killed += kill_all(partial(_processes, folder))
        if not wait_until(partial(remove_folders, folder), _EMPTY_WITHIN_S):
            raise RunError(f"{folder}: it cannot be removed")
    return [f"partition {name}{f' ({killed} processes)' if killed else ''}"] if folders else []


def _processes(folder: Path) -> list[ProcessId]:
    found = []
    for path in [folder, *(inside for inside in folder.rglob("*") if inside.is_dir())]:
        with contextlib.suppress(OSError):  # the group is gone, or has no processes of its own
            found += [identify(int(pid)) for pid in _text(path / "cgroup.procs").split()]
    return [process for process in found if process is not None]


def remove_folders(folder: Path) -> bool:
    """Remove a group and its subgroups, innermost first; return False while a group is in use."""
    try:
        for path in sorted((p for p in folder.rglob("*") if p.is_dir()), reverse=True):
            path.rmdir()
        folder.rmdir()
    except FileNotFoundError:
        return not folder.exists()
    except OSError:
        return False
    return True


def _v2(groups: Hierarchies) -> Path:
    if groups.v2 is None:
        raise RunError("control groups: version 2 is not mounted")
    return groups.v2


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()
