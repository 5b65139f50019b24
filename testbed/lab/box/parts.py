"""The interface of a lab's parts, and the parts that are folders or processes."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from testbed.lab.box.processes import ProcessId, alive, end, spawn
from testbed.lab.box.state import Journal


class Part(Protocol):
    """A part of a lab. All methods block, within deadlines of their own, and raise `TestbedError`."""

    @property
    def name(self) -> str:
        """Kind and name of the part, unique in the lab."""

    def there(self) -> bool:
        """Whether the part exists and works."""

    def make(self) -> None:
        """Create the part, also if an earlier one has left something."""

    def remove(self) -> list[str]:
        """Remove the part with its contents; return the names of removed items, none if it did not exist."""


@dataclass(frozen=True, slots=True)
class Folders:
    """Private folders below the lab's own folder."""

    top: Path
    inside: tuple[str, ...]

    @property
    def name(self) -> str:
        """See `Part.name`."""
        return f"folder {self.top}"

    def there(self) -> bool:
        """See `Part.there`."""
        return all((self.top / name).is_dir() for name in self.inside)

    def make(self) -> None:
        """See `Part.make`."""
        self.top.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in self.inside:
            (self.top / name).mkdir(parents=True, exist_ok=True)

    def remove(self) -> list[str]:
        """See `Part.remove`."""
        if not self.top.exists():
            return []
        shutil.rmtree(self.top)
        return [self.name]


class ProcessPart(ABC):
    """A part that is a process; `grace_s` is the time from SIGTERM to SIGKILL."""

    __slots__ = ()
    journal: Journal
    grace_s: ClassVar[float]

    @property
    @abstractmethod
    def name(self) -> str:
        """See `Part.name`."""

    @property
    def process(self) -> ProcessId | None:
        """The recorded process, alive or not."""
        return self.journal.process(self.name)

    def started(self, argv: Sequence[str], marked_as: str, log: Path, stdin: str = "") -> ProcessId:
        """Start the process and record it; see `spawn`."""
        process = spawn(argv, marked_as, log, stdin)
        self.journal.started(self.name, process)
        return process

    def remove(self) -> list[str]:
        """See `Part.remove`."""
        process = self.process
        if process is None or not alive(process):
            return []
        end([process], self.grace_s)
        return [self.name]
