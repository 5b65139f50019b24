"""Guests of a killed agent that the next agent takes over, and the lease that they belong to."""

from __future__ import annotations

import logging
from pathlib import Path

from node_agent.drivers.protocol import Driver, OnSaved, Outlives
from node_agent.lease_notes import LeaseNotes
from testbed.bus.lease import LeaseGuard
from testbed.bus.messages import GuestSpec

_log = logging.getLogger(__name__)


class Survivors:
    """Passes guests from one agent to the next, if its driver has guests that outlive an agent (`Outlives`)."""

    def __init__(self, driver: Driver, state_dir: Path, guard: LeaseGuard) -> None:
        self._driver = driver if isinstance(driver, Outlives) else None
        self._notes = LeaseNotes(state_dir)
        self._guard = guard
        self.orphaned = False  # there are guests, but no lease is known: no controller will ever claim them

    def prepare(self, keep_s: float, on_saved: OnSaved) -> None:
        """Set the driver's time limit and callback; call it before the driver is opened."""
        if self._driver is not None:
            self._driver.keep_s, self._driver.on_saved = keep_s, on_saved

    def found(self) -> list[GuestSpec]:
        """Return the guests that the driver has taken over; they are kept until their lease must have run out."""
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
        """Let the driver forget a guest: its end has been reported, or its image noted."""
        if self._driver is not None:
            self._driver.settled(guest)
