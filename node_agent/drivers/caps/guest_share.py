"""The share of one guest: a weight that is set and read back, and repaired on drift."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from node_agent.drivers.caps.protocol import Weights
from node_agent.drivers.protocol import DriverError, DriverEvent
from testbed.bus.caps import same_share


class GuestShare:
    """`wanted_cores` is the share of the guest on a node of `node_cores`. Without `weights` none can be set."""

    def __init__(
        self, guest: str, wanted_cores: float, node_cores: float, weights: Weights | None,
        tell: Callable[[DriverEvent], None],
    ) -> None:  # fmt: skip
        self.wanted_cores = wanted_cores
        self._guest = guest
        self._node_cores = node_cores
        self._weights = weights
        self._tell = tell
        self._taken = False
        self._setting = asyncio.Lock()  # held while the share is being set: a read may return the old or the new one
        self._repairing: asyncio.Task[None] | None = None

    async def boot(self) -> None:
        """Give a guest the part of the whole node until `take`: booting is the machine's work, not the task's.

        Raises `DriverError`.
        """
        await self._weigh(self._node_cores)

    async def take(self) -> None:
        """Set the share of a guest that has been created; raises `DriverError`."""
        self._taken = True
        await self.set(self.wanted_cores)

    async def set(self, share_cores: float) -> float:
        """Set the share, or keep it until `take`; return it as read back or kept. Raises `DriverError`."""
        self.wanted_cores = share_cores
        return await self._weigh(share_cores) if self._taken else share_cores

    async def _weigh(self, share_cores: float) -> float:
        weights = self._weights
        if weights is None:
            raise DriverError(f"guest {self._guest} has a share: there are no weights here")
        try:
            async with self._setting:
                await weights.bound(self._node_cores)
                found = await weights.weigh(self._guest, share_cores / self._node_cores) * self._node_cores
        except (OSError, KeyError, ValueError) as error:  # its process may have ended just now
            raise DriverError(f"guest {self._guest}: its share could not be set: {error}") from error
        if not same_share(found, share_cores, self._node_cores):
            raise DriverError(f"guest {self._guest}: share {share_cores} cores was read back as {found}")
        return found

    def in_force(self) -> float | None:
        """Return the share in force, None before `take` and where it cannot be read."""
        if self._weights is None or not self._taken:
            return None
        try:
            return self._weights.weight(self._guest) * self._node_cores
        except (OSError, KeyError, ValueError, DriverError):  # not there yet, or it has ended just now
            return None

    def look_after(self, in_force: float | None) -> None:
        """Detect a share that was changed from outside, and set it again."""
        idle = not self._setting.locked() and (self._repairing is None or self._repairing.done())
        if in_force is None or not idle or same_share(in_force, self.wanted_cores, self._node_cores):
            return
        self._repairing = asyncio.get_running_loop().create_task(self._repair(in_force), name="set a share again")

    async def _repair(self, found: float) -> None:
        detail: dict[str, object] = {"of": "share", "wanted": self.wanted_cores, "found": found}
        self._tell(DriverEvent(self._guest, "drift", time.monotonic_ns(), detail))
        with contextlib.suppress(DriverError):
            await self.set(self.wanted_cores)
