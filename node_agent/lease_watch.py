"""Follows the lease of the lab, and reports its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from testbed.bus.lease import LeaseGuard
from testbed.bus.messages import Lease

_log = logging.getLogger(__name__)


class Guests(Protocol):
    """The guests of a node that has lost its controller."""

    def held(self) -> set[str]:
        """Return the names of the guests that hold memory."""

    def lost(self, guest: str, why: str) -> None:
        """Report that a guest was destroyed because its lease ran out."""


class Abandon(Protocol):
    """Destroys a node's guests, or holds them (`pause`), when the node has no controller any more."""

    def __call__(self, why: str, *, pause: bool = False) -> Awaitable[None]:
        """See above."""


class LeaseWatch:
    """Takes the records of the lease, and calls `abandon` when it was released or has run out.

    `keep(lease)` is called for each record of a lease in force.
    """

    def __init__(self, guard: LeaseGuard, keep: Callable[[Lease], None], abandon: Abandon, guests: Guests) -> None:
        self._guard = guard
        self._keep = keep
        self._abandon = abandon
        self._guests = guests
        self._news = asyncio.Event()
        self._released = False

    def hear(self, topic: str, payload: bytes) -> None:
        """Take a record of the lease topic."""
        self._released |= self._guard.hear(topic, payload)
        if self._guard.lease is not None:
            self._keep(self._guard.lease)
        self._news.set()

    async def run(self) -> None:
        """Watch it until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._guard.remaining_s or None):
                    await self._news.wait()
            self._news.clear()
            if self._released:
                self._released = False
                await self._abandon("the lease was released")
            elif self._guard.run_out():
                await self._run_out()

    async def _run_out(self) -> None:
        """Act on a lease that has run out: its holder may be gone, or may return and continue."""
        loss = self._guard.on_controller_loss
        why = f"the lease ran out, on_controller_loss = {loss}"
        if loss == "keep":
            _log.warning("%s: guests continue", why)
            return
        held = self._guests.held()
        await self._abandon(why, pause=loss == "pause")
        if loss == "remove":
            for guest in sorted(held):
                self._guests.lost(guest, why)
