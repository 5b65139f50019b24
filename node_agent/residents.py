"""The guests that a node holds: their memory, their runs, and a lock for the commands of each."""

from __future__ import annotations

import asyncio

from node_agent.drivers.protocol import DriverError
from testbed.bus.messages import GuestSpec


class Residents:
    """Guests from the command that starts them until they are gone. Their memory is `memory_mib` at most in total."""

    def __init__(self, memory_mib: int) -> None:
        self._most_mib = memory_mib
        self._memory_mib: dict[str, int] = {}
        self._runs: dict[str, str] = {}  # by guest
        self._locks: dict[str, asyncio.Lock] = {}

    def __contains__(self, guest: str) -> bool:
        return guest in self._memory_mib

    @property
    def names(self) -> set[str]:
        """The guests that hold memory."""
        return set(self._memory_mib)

    def lock(self, guest: str) -> asyncio.Lock:
        """Return the lock under which the commands for a guest are carried out, one after the other."""
        return self._locks.setdefault(guest, asyncio.Lock())

    def memory_mib(self, guest: str) -> int:
        """Return the memory of a guest; 0 if it is not here."""
        return self._memory_mib.get(guest, 0)

    def of_run(self, run: str | None) -> set[str]:
        """Return the names of the guests of a run."""
        return {guest for guest, its in self._runs.items() if its == run}

    def add(self, spec: GuestSpec) -> None:
        """Reserve the memory of a guest that starts; raises `DriverError` if there is not enough."""
        free_mib = self._most_mib - sum(self._memory_mib.values())
        if spec.memory_mib > free_mib:
            raise DriverError(
                f"guest {spec.guest} needs {spec.memory_mib} MiB; {free_mib} of {self._most_mib} MiB are free"
            )
        self.found(spec)

    def found(self, spec: GuestSpec) -> None:
        """Note a guest that is here already."""
        self._memory_mib[spec.guest] = spec.memory_mib
        self._runs[spec.guest] = spec.run

    def remove(self, guest: str) -> None:
        """Forget a guest."""
        self._memory_mib.pop(guest, None)
        self._runs.pop(guest, None)
