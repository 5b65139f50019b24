"""The control group of a lab's own processes: broker, libvirtds, their agents, and a controller on this machine.

A node's partition weighs 64 times as much as an ordinary process, so that foreign load takes little of it. The lab's
own processes would be foreign load, too: on a machine whose guests are all busy, a command would wait until the nodes
have used up their quotas, for most of each 0.1 s. They are in a group of the greatest weight instead: they need little
time, and have it at once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from testbed.box.commands import program
from testbed.box.partition import enable_controllers, here, remove_folders
from testbed.box.processes import wait_until
from testbed.box.spec import prefix
from testbed.errors import RunError

SUFFIX = ".control"
_SHARES, _WEIGHT = 262_144, 10_000  # the greatest of version 1 and of version 2
_EMPTY_WITHIN_S = 5.0
_PROCESSES = "cgroup.procs"


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """See `Part`."""

    lab: str

    @property
    def name(self) -> str:
        """See `Part.name`."""
        return f"control group {_folder(self.lab).name}"

    def there(self) -> bool:
        """See `Part.there`."""
        path, value = self._weight()
        return path.is_file() and path.read_text(encoding="ascii").strip() == value

    def make(self) -> None:
        """See `Part.make`."""
        path, value = self._weight()
        try:
            path.parent.mkdir(exist_ok=True)
            enable_controllers(here())
            path.write_text(value, encoding="ascii")
        except OSError as error:
            raise RunError(f"{self.name}: {error.filename or ''}: {error.strerror}") from error
        if not self.there():
            raise RunError(f"{self.name}: the kernel did not take its settings")

    def remove(self) -> list[str]:
        """See `Part.remove`."""
        return remove_control_group(_folder(self.lab).name)

    def _weight(self) -> tuple[Path, str]:
        folder = _folder(self.lab)
        if here().kind == "v2":
            return folder / "cpu.weight", str(_WEIGHT)
        return folder / "cpu.shares", str(_SHARES)


def within(lab: str) -> list[str]:
    """Return the beginning of a command line that runs the rest of it in the lab's control group."""
    return [program("sh"), "-c", 'echo $$ > "$1" && shift && exec "$@"', "sh", str(_folder(lab) / _PROCESSES)]


@contextlib.contextmanager
def joined(lab: str) -> Iterator[None]:
    """Have this process in the lab's control group for a while, if it may and there is one."""
    left = _own_folder()
    with contextlib.suppress(OSError):  # an ordinary user may not
        _join(_folder(lab), os.getpid())
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            _join(left, os.getpid())


def control_groups() -> list[str]:
    """Return the names of all control groups on the machine that may belong to labs."""
    return sorted(path.name for path in _root().glob(f"dfrs-*{SUFFIX}"))


def remove_control_group(name: str) -> list[str]:
    """Remove a control group if it is there; processes in it, such as a controller, continue outside of it.

    Raises `RunError`.
    """
    folder = _root() / name
    if not folder.is_dir():
        return []

    def removed() -> bool:
        with contextlib.suppress(FileNotFoundError):
            for pid in (folder / _PROCESSES).read_text(encoding="ascii").split():
                with contextlib.suppress(OSError):  # it has ended
                    _join(_root(), int(pid))
        return remove_folders(folder)

    if not wait_until(removed, _EMPTY_WITHIN_S):
        raise RunError(f"{folder}: it cannot be removed")
    return [f"control group {name}"]


def _root() -> Path:
    """Where the groups are that rule CPU time."""
    groups = here()
    return groups.v1["cpu"] if "cpu" in groups.v1 else groups.roots[0]


def _folder(lab: str) -> Path:
    return _root() / f"{prefix(lab)}lab{SUFFIX}"


def _own_folder() -> Path:
    """The folder of the group that this process is in; the root of all if it cannot be seen from here."""
    root, wanted = _root(), "" if here().kind == "v2" else "cpu"
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if wanted in controllers.split(",") and (root / path.lstrip("/")).is_dir():
            return root / path.lstrip("/")
    return root


def _join(folder: Path, pid: int) -> None:
    if folder.is_dir():  # the file of a folder that is not there would be made
        (folder / _PROCESSES).write_text(str(pid), encoding="ascii")
