"""Fences: the moments of the node's monotonic clock until which guests may run without hearing from a controller.

This module imports nothing but the standard library: processes that enforce the fences of an agent that is dead or
stopped read its file with it. The protocol and its proof are in docs/resume.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FENCES_FILE = "fences.json"  # in an agent's state folder
LOOK_EVERY_S = 0.5  # guests must be gone within `DESTROYED_WITHIN_S` after their fences
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def clock_identity() -> str:
    """Return a name of this machine's monotonic clock, which differs after each boot; empty if the kernel has none."""
    with contextlib.suppress(OSError):
        return hashlib.sha256(b"clock " + _BOOT_ID.read_bytes().strip()).hexdigest()[:16]
    return ""


@dataclass(slots=True)
class _Entry:
    until_ns: int
    arriving: bool = False


class Fences:
    """The fences of a node's guests, by name, on the clock `clock`; moments are nanoseconds of that clock.

    A fence only moves to later moments. The fence of an `arriving` guest, which migrates to this node live, stays in
    force after it has fallen, because the guest may arrive later.
    """

    def __init__(self, clock: str) -> None:
        self.clock = clock
        self._entries: dict[str, _Entry] = {}

    def refusal(self, clock: str, until_ns: int, now_ns: int) -> str | None:
        """Return why a guest must not begin to run under this fence, or None if it may."""
        if clock != self.clock or not clock:
            return f"its fence is of clock {clock}: the clock of this node is {self.clock or 'unknown'}"
        if until_ns <= now_ns:
            return f"its fence has fallen {(now_ns - until_ns) / 1e9:.3f} s ago"
        return None

    def place(self, guest: str, until_ns: int, *, arriving: bool = False) -> None:
        """Set the fence of a guest that is about to be created, taken over, or to arrive."""
        known = self._entries.get(guest)
        until_ns = until_ns if known is None or known.arriving else max(known.until_ns, until_ns)
        self._entries[guest] = _Entry(until_ns, arriving)

    def renew(self, clock: str, until_ns: int, guests: Iterable[str]) -> bool:
        """Move the fences of guests that have one; return whether the renewal is for this clock, else it is ignored."""
        if clock != self.clock:
            return False
        for guest in guests:
            entry = self._entries.get(guest)
            if entry is not None:
                entry.until_ns = max(entry.until_ns, until_ns)
        return True

    def lift(self, guest: str) -> bool:
        """Remove the fence of a guest that is gone; a guest that may still arrive is destroyed from now on.

        Returns whether that changes anything.
        """
        entry = self._entries.get(guest)
        if entry is None or not entry.arriving:
            return self._entries.pop(guest, None) is not None
        changes = entry.until_ns > 0
        entry.until_ns = 0
        return changes

    def due(self, now_ns: int) -> tuple[str, ...]:
        """Return the guests that must not run any more."""
        return tuple(guest for guest, entry in self._entries.items() if entry.until_ns <= now_ns)

    def guests(self) -> tuple[str, ...]:
        """Return the guests that have fences."""
        return tuple(self._entries)

    def arriving(self) -> tuple[str, ...]:
        """Return the guests that migrate to this node live, and may arrive at any time."""
        return tuple(guest for guest, entry in self._entries.items() if entry.arriving)

    def next_ns(self) -> int | None:
        """Return the moment of the first fence, None without one."""
        return min((entry.until_ns for entry in self._entries.values()), default=None)

    def __contains__(self, guest: str) -> bool:
        return guest in self._entries

    def clear(self) -> None:
        """Remove all fences."""
        self._entries.clear()

    def encode(self) -> bytes:
        """Return the table as JSON, for `load`."""
        fences = {name: {"until_ns": each.until_ns, "arriving": each.arriving} for name, each in self._entries.items()}
        return json.dumps({"clock": self.clock, "fences": fences}).encode()

    @classmethod
    def load(cls, content: bytes, clock: str) -> Fences:
        """Return the table that an agent of this node has written; empty if the machine has booted since.

        Raises `ValueError` for another content.
        """
        table = cls(clock)
        try:
            found = json.loads(content)
            if found["clock"] == clock:
                for guest, entry in found["fences"].items():
                    table._entries[str(guest)] = _Entry(int(entry["until_ns"]), bool(entry["arriving"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no table of fences: {error}") from error
        return table


class FenceFile:
    """The file that an agent keeps its fences in, for processes that outlive it."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FENCES_FILE
        self._version: tuple[int, int, int] | None = None
        self.fences = Fences(clock_identity())

    def look(self) -> tuple[str, ...]:
        """Read the file if it has changed; return the guests that must not run now."""
        with contextlib.suppress(OSError, ValueError):  # the fences that were read before stay in force
            found = os.stat(self._path)  # noqa: PTH116  # twice per second
            version = found.st_ino, found.st_size, found.st_mtime_ns
            if version != self._version:
                self.fences = Fences.load(self._path.read_bytes(), self.fences.clock)
                self._version = version
        return self.fences.due(time.monotonic_ns())
