"""The cap of one process guest: set and read back, kept for later while the guest is uncapped, repaired on drift."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from node_agent.drivers.caps.protocol import Caps
from node_agent.drivers.protocol import DriverError, DriverEvent
from testbed.bus.caps import same_cap
from testbed.bus.messages import GuestSpec

SIGNALS = "duty"  # the mechanism that the agent itself enforces, by signals


class GuestCap:
    """`wanted_cores` is the cap of the guest while it runs; `runs()` returns whether it runs."""

    def __init__(
        self, spec: GuestSpec, cap_cores: float, caps: Caps, tell: Callable[[DriverEvent], None],
        runs: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.wanted_cores = cap_cores
        self._guest = spec.guest
        self.most_cores = float(spec.program.workers)
        self._caps = caps
        self._tell = tell
        self._runs = runs
        self._setting = asyncio.Lock()  # held while a cap is being set: a read may return the old or the new one
        self._repairing: asyncio.Task[None] | None = None

    @property
    def needs_agent(self) -> bool:
        """Whether the guest would exceed its cap without an agent."""
        return self._runs() and self._caps.name == SIGNALS and self.wanted_cores < self.most_cores

    def in_force(self) -> float | None:
        """Return the cap in force, None where that cannot be read."""
        try:
            return float(self._caps.read(self._guest))
        except (OSError, KeyError, ValueError):  # not under a cap yet, or it has ended just now
            return None

    def throttled_s(self) -> float | None:
        """Return the total time for which the cap throttled the guest, None if it is unknown."""
        try:
            return self._caps.throttled_s(self._guest)
        except (OSError, KeyError, ValueError):
            return None

    async def take(self, pid: int, *, again: bool = False) -> None:
        """Add the guest's program to the mechanism, uncapped yet, or `again` with its cap. Raises `OSError`."""
        put = self._caps.take_over if again else self._caps.add
        await put(self._guest, pid, int(self.most_cores))

    async def apply(self) -> float:
        """Set the wanted cap; return the one in force."""
        wanted = self.wanted_cores
        found = await self.set(wanted)
        if found is None or not same_cap(found, wanted, self.most_cores):
            raise DriverError(f"guest {self._guest}: cap {wanted} cores was read back as {found}")
        return min(found, self.most_cores)

    async def set(self, cap_cores: float | None) -> float | None:
        """Set a cap or lift it; return it as read back."""
        try:
            async with self._setting:
                return await self._caps.set(self._guest, cap_cores)
        except (OSError, KeyError, ValueError) as error:  # its process may have ended just now
            raise DriverError(f"guest {self._guest}: its cap could not be set: {error}") from error

    async def remove(self) -> None:
        """Forget the guest."""
        await self._caps.remove(self._guest)

    def look_after(self, in_force: float | None) -> None:
        """Detect a cap that was changed from outside, and set it again."""
        idle = not self._setting.locked() and (self._repairing is None or self._repairing.done())
        if not self._runs() or in_force is None or not idle:
            return
        if not same_cap(in_force, self.wanted_cores, self.most_cores):
            self._repairing = asyncio.get_running_loop().create_task(self._repair(in_force), name="set a cap again")

    async def _repair(self, found: float) -> None:
        if not self._runs():
            return
        detail: dict[str, object] = {"wanted": self.wanted_cores, "found": found if found < self.most_cores else -1.0}
        self._tell(DriverEvent(self._guest, "drift", time.monotonic_ns(), detail))
        with contextlib.suppress(DriverError):
            await self.apply()
