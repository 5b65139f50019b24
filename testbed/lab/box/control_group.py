"""The control group of a lab's own processes: broker, libvirtds, their agents, and a controller on this machine.

A node's partition has 64 times the weight of an ordinary process, so that foreign load takes little CPU time from the
node. With an ordinary weight, the lab's own processes would hardly run while all guests are busy: a command would wait
until the nodes' quotas are used up, for up to 0.1 s. Therefore this group has the greatest weight that the kernel
allows. Its processes need little CPU time, so the guests lose little.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import RunError
from testbed.lab.box.commands import program
from testbed.lab.box.partition import have_values, here, make_group, remove_folders
from testbed.lab.box.processes import wait_until
from testbed.lab.box.spec import prefix

SUFFIX = ".control"
_SHARES, _WEIGHT = 262_144, 10_000  # the greatest values of control groups v1 and v2
_EMPTY_WITHIN_S = 5.0
_PROCESSES = "cgroup.procs"


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The control group as a `Part` of a lab."""

    lab: str

    @property
    def name(self) -> str:
        """See `Part.name`."""
        return f"control group {_folder(self.lab).name}"

    def there(self) -> bool:
        """See `Part.there`."""
        return have_values(self._weight())

    def make(self) -> None:
        """See `Part.make`."""
        make_group(self.name, here(), [_folder(self.lab)], self._weight())

    def remove(self) -> list[str]:
        """See `Part.remove`."""
        return remove_control_group(_folder(self.lab).name)

    def _weight(self) -> dict[Path, str]:
        folder = _folder(self.lab)
        if here().kind == "v2":
            return {folder / "cpu.weight": str(_WEIGHT)}
        return {folder / "cpu.shares": str(_SHARES)}


def within(lab: str) -> list[str]:
    """Return a prefix for a command line that runs the command in the lab's control group."""
    return [program("sh"), "-c", 'echo $$ > "$1" && shift && exec "$@"', "sh", str(_folder(lab) / _PROCESSES)]


@contextlib.contextmanager
def joined(lab: str) -> Iterator[None]:
    """Move this process to the lab's control group for the block.

    If the user has no permission for that, the process stays in its group.
    """
    left = _own_folder()
    with contextlib.suppress(OSError):
        _join(_folder(lab), os.getpid())
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            _join(left, os.getpid())


def control_groups() -> list[str]:
    """Return the names of the control groups of all labs on the machine."""
    return sorted(path.name for path in _root().glob(f"dfrs-*{SUFFIX}"))


def remove_control_group(name: str) -> list[str]:
    """Remove a control group if it exists; its processes, such as a controller, continue in the root group.

    Raises `RunError`.
    """
    folder = _root() / name
    if not folder.is_dir():
        return []

    def removed() -> bool:
        with contextlib.suppress(FileNotFoundError):
            for pid in (folder / _PROCESSES).read_text(encoding="ascii").split():
                with contextlib.suppress(OSError):  # the process has ended
                    _join(_root(), int(pid))
        return remove_folders(folder)

    if not wait_until(removed, _EMPTY_WITHIN_S):
        raise RunError(f"{folder}: it cannot be removed")
    return [f"control group {name}"]


def _root() -> Path:
    """Return the mount point of the hierarchy that controls CPU time."""
    groups = here()
    return groups.v1["cpu"] if "cpu" in groups.v1 else groups.roots[0]


def _folder(lab: str) -> Path:
    return _root() / f"{prefix(lab)}lab{SUFFIX}"


def _own_folder() -> Path:
    """Return the folder of this process's group, or the root if a namespace hides that folder."""
    root, wanted = _root(), "" if here().kind == "v2" else "cpu"
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if wanted in controllers.split(",") and (root / path.lstrip("/")).is_dir():
            return root / path.lstrip("/")
    return root


def _join(folder: Path, pid: int) -> None:
    if folder.is_dir():
        (folder / _PROCESSES).write_text(str(pid), encoding="ascii")
