"""What every part of a lab can do, and the parts that are folders."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class Part(Protocol):
    """A part of a lab. All methods block, within deadlines of their own, and raise `TestbedError`."""

    @property
    def name(self) -> str:
        """Kind and name, unique in the lab."""

    def there(self) -> bool:
        """Whether it is there, and does what it is for."""

    def make(self) -> None:
        """Make it, over whatever is left of an earlier one."""

    def remove(self) -> list[str]:
        """Remove it and what is in it; returns what was removed, nothing if it was not there."""


@dataclass(frozen=True, slots=True)
class Folders:
    """Private folders below one that belongs to the lab alone."""

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
