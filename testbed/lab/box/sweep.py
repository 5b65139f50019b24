"""Finds leftovers of a lab by names and marks, including parts that were not recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from testbed.lab.box.control_group import control_groups, remove_control_group
from testbed.lab.box.network import namespaces, remove_namespace
from testbed.lab.box.partition import partitions, remove_partition
from testbed.lab.box.parts import Folders, Part
from testbed.lab.box.processes import ProcessId, kill_all, marked, with_housemates
from testbed.lab.box.spec import STORE_ROOT, lab_dir, prefix, store_dir
from testbed.lab.box.state import labs


@dataclass(frozen=True, slots=True)
class Leftover:
    """An existing resource, as a `Part` that can only be removed."""

    name: str
    take: Callable[[], list[str]]

    def there(self) -> bool:
        """See `Part.there`."""
        return True

    def make(self) -> None:
        """See `Part.make`; a leftover already exists."""

    def remove(self) -> list[str]:
        """See `Part.remove`."""
        return self.take()


def known_labs() -> list[str]:
    """Return the names of all labs with a folder; folders on disk outlive a reboot of the machine."""
    stored = [path.name for path in STORE_ROOT.iterdir() if path.is_dir()] if STORE_ROOT.is_dir() else []
    return sorted({*labs(), *stored})


def processes_of(lab: str) -> list[ProcessId]:
    """Return all processes of a lab, including those of its guests."""
    return with_housemates(marked(lab))


def leftovers(lab: str) -> list[list[Part]]:
    """Return the leftovers of a lab in layers, as `plan.layers_of`; the last layer is removed first."""
    processes = processes_of(lab)
    folders = [Folders(lab_dir(lab), ()), Folders(store_dir(lab), ())]
    found: list[list[Part]] = [
        # also with processes, as a starting process may create its folder just before it is killed
        [folder for folder in folders if processes or folder.top.exists()],
        _found(lab, "network", namespaces(), remove_namespace),
        _found(lab, "control group", control_groups(), remove_control_group),
        _found(lab, "partition", partitions(), remove_partition),
        [Leftover(f"processes {', '.join(str(process.pid) for process in processes)}", partial(_kill, lab))]
        if processes
        else [],
    ]
    return [layer for layer in found if layer]


def _found(lab: str, kind: str, names: Iterable[str], remove: Callable[[str], list[str]]) -> list[Part]:
    return [Leftover(f"{kind} {name}", partial(remove, name)) for name in names if _is_of(lab, name)]


def _is_of(lab: str, name: str) -> bool:
    others = [other for other in known_labs() if prefix(other).startswith(prefix(lab)) and other != lab]
    return name.startswith(prefix(lab)) and not any(name.startswith(prefix(other)) for other in others)


def _kill(lab: str) -> list[str]:
    killed = kill_all(lambda: processes_of(lab))
    return [f"{killed} stray processes of lab {lab}"] if killed else []
