"""The protocol of mechanisms that cap CPU time."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

PERIOD_S = 0.1  # over which a cap holds; an unused rest is lost, except where a mechanism states otherwise


class Caps(Protocol):
    """Caps the CPU time of one process per guest, all its threads together. Caps are in cores."""

    @property
    def name(self) -> str:
        """`cgroup1`, `cgroup2` or `duty`."""

    async def open(self) -> None:
        """Get ready, and prove on a process of its own that a cap can be set and read back; raises `OSError`."""

    async def add(self, guest: str, pid: int, most_cores: float) -> None:
        """Add a process that can use at most `most_cores`, uncapped until `set`."""

    async def take_over(self, guest: str, pid: int, most_cores: float) -> None:
        """Take over a process of an earlier agent, with the cap in force."""

    async def set(self, guest: str, cap_cores: float | None) -> float | None:
        """Set the cap, or lift it with None; return it as read back. A cap of `most_cores` or more costs nothing."""

    def read(self, guest: str) -> float:
        """Return the cap in force as it is now, `most_cores` without one, in some 0.1 ms.

        Raises `OSError`, or `KeyError` for a guest that was not added yet.
        """

    def throttled_s(self, guest: str) -> float | None:
        """Return the total time for which the cap throttled a guest with one thread, None for other guests.

        Raises `OSError`, or `KeyError` for a guest that was not added yet.
        """

    async def remove(self, guest: str) -> None:
        """Forget a guest, which then runs uncapped if it still lives; an unknown guest is no error."""

    async def close(self) -> None:
        """Lift every cap and leave nothing behind."""


@runtime_checkable
class Weights(Protocol):
    """A mechanism of caps by which guests can also compete by weight: idle guests leave their part to the others."""

    async def bound(self, cores: float) -> None:
        """Let all guests together use at most so many cores; raises `OSError`."""

    async def weigh(self, guest: str, part_frac: float) -> float:
        """Set the part of the node that a guest gets under contention; return it as read back; raises `OSError`."""

    def weight(self, guest: str) -> float:
        """Return that part as it is now; raises `OSError`, or `KeyError` for a guest that was not added yet."""
