"""Guests of a killed agent that the next one takes over: their accounts, and the lease that they are under."""

from __future__ import annotations

import logging
from pathlib import Path

from node_agent.drivers.protocol import Driver, OnSaved, Outlives
from node_agent.lease_notes import LeaseNotes
from testbed.bus.lease import LeaseGuard
from testbed.bus.messages import GuestSpec

_log = logging.getLogger(__name__)


class Survivors:
    """What an agent does for guests that outlive it, if its driver has such guests (`Outlives`)."""

    def __init__(self, driver: Driver, state_dir: Path, guard: LeaseGuard) -> None:
        self._driver = driver if isinstance(driver, Outlives) else None
        self._notes = LeaseNotes(state_dir)
        self._guard = guard
        self.orphaned = False  # there are guests, and no lease is known: nobody will ever ask for them

    def prepare(self, keep_s: float, on_saved: OnSaved) -> None:
        """Call it before the driver is opened."""
        if self._driver is not None:
            self._driver.keep_s, self._driver.on_saved = keep_s, on_saved

    def found(self) -> list[GuestSpec]:
        """Return the guests that the driver has taken over; they stay for as long as its lease may last."""
        specs = [] if self._driver is None else self._driver.taken_over()
        if not specs:
            return []
        lease = self._notes.read()
        if lease is None:
            self.orphaned = True
        else:
            self._guard.expect(lease)
        _log.warning("taken over from an earlier agent: %s", ", ".join(spec.guest for spec in specs))
        return specs

    def keep_lease(self) -> None:
        """Note the lease in force for the next agent."""
        lease = self._guard.lease
        if self._driver is not None and lease is not None:
            self._notes.keep(lease)

    def settled(self, guest: str) -> None:
        """The end of a guest has been reported, or its image noted."""
        if self._driver is not None:
            self._driver.settled(guest)
