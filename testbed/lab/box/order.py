"""Creates and removes the parts of a lab in the order of their layers, whatever their kinds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from testbed.errors import TestbedError
from testbed.lab.box.parts import Part

_AT_ONCE = 8


class PartsBook(Protocol):
    """Record of the parts to be created and of the created parts, such as `state.Journal`."""

    def intend(self, part: str) -> None:
        """Record that a part is about to be created."""

    def made(self, part: str) -> None:
        """Record that a part exists."""


@dataclass(slots=True)
class Removal:
    """The result of a removal: names of removed parts, and a line for each part that could not be removed."""

    removed: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def make_in_order(layers: Sequence[Sequence[Part]], book: PartsBook, say: Callable[[str], None]) -> list[str]:
    """Create every missing part, and return their names; after a failure in a layer, later layers are not created."""

    def one(part: Part) -> str | None:
        if is_there(part):
            book.made(part.name)  # an earlier command may have been killed before it recorded the part
            return None
        book.intend(part.name)
        started_s = time.monotonic()
        part.make()
        book.made(part.name)
        say(f"{part.name}: {time.monotonic() - started_s:.1f} s")
        return part.name

    names: list[str | None] = []
    for layer in layers:
        with ThreadPoolExecutor(_AT_ONCE, "box") as threads:
            names += [work.result() for work in [threads.submit(one, part) for part in layer]]
    return [name for name in names if name is not None]


def remove_in_order(layers: Sequence[Sequence[Part]], say: Callable[[str], None]) -> Removal:
    """Remove every part, the last layer first; a failed removal does not stop the others."""

    def one(part: Part) -> tuple[list[str], str | None]:
        try:
            gone = part.remove()
        except (TestbedError, OSError) as error:
            return [], str(error) if isinstance(error, TestbedError) else f"{part.name}: {error}"
        for name in gone:
            say(f"removed {name}")
        return gone, None

    outcome = Removal()
    for layer in reversed(layers):
        with ThreadPoolExecutor(_AT_ONCE, "box") as threads:
            for gone, failure in threads.map(one, layer):
                outcome.removed += gone
                outcome.failures += [] if failure is None else [failure]
    return outcome


def is_there(part: Part) -> bool:
    """Whether a part exists; a part that cannot be checked counts as missing."""
    try:
        return part.there()
    except (TestbedError, OSError):
        return False
