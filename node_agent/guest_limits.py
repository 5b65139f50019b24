"""Caps and shares of guests, set while no other command for the guest is carried out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from node_agent.abilities import Abilities
from node_agent.drivers.protocol import Driver, DriverError
from node_agent.residents import Residents

_MOVE_WITHIN_S = 1.0  # a cap that was not set within this time is set in the next period of its exchange


class GuestLimits:
    """Sets what a guest may use."""

    def __init__(self, driver: Driver, able: Abilities, residents: Residents) -> None:
        self._driver = driver
        self._able = able
        self._residents = residents

    async def set_cap(self, guest: str, cores: float) -> float:
        """Set a cap; returns the one that was read back."""
        async with self._residents.lock(guest):
            return await self._driver.set_cap(guest, cores)

    async def move_cap(self, guest: str, cores: float) -> None:
        """Set the cap that follows from an exchange, unless another command for the guest takes long."""
        lock = self._residents.lock(guest)
        try:
            async with asyncio.timeout(_MOVE_WITHIN_S):
                await lock.acquire()
        except TimeoutError:
            raise DriverError(f"guest {guest} is busy") from None
        try:
            await self._driver.set_cap(guest, cores)
        finally:
            lock.release()

    async def set_share(self, guest: str, cores: float) -> float:
        """Set a share; returns the one that was read back."""
        async with self._residents.lock(guest):
            return await self._able.sharing.set_share(guest, cores)

    async def guess_waits(self, guest: str, addresses: Sequence[str]) -> None:
        """Guess from outside for which of these addresses a guest waits."""
        async with self._residents.lock(guest):
            await self._able.guessing.guess_waits(guest, addresses)
