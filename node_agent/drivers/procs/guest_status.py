"""The state of one process guest, how its work ended, and why it failed, as all parts of the guest share them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from node_agent.drivers.procs.guest_record import State
from node_agent.drivers.protocol import DriverError


class GuestStatus:
    """`trouble` is the reason of the guest's failure, if any. `gone` is done when nothing of the guest is left.

    `done` is the report that its work is done, with the time of its arrival.
    """

    def __init__(self, guest: str) -> None:
        self.guest = guest
        self.state = State.WAITING
        self.trouble = ""
        self.done: tuple[int, dict[str, Any]] | None = None
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def must_be(self, *states: State) -> None:
        """Raise `DriverError` if the guest is in none of these states."""
        if self.state not in states:
            raise DriverError(f"guest {self.guest} is {self.state}: expected {' or '.join(states)}")

    def blame(self, reason: str) -> None:
        """Note a reason of the guest's failure; the first one counts."""
        self.trouble = self.trouble or reason

    def late(self) -> DriverError:
        """Return the error of an order that came after the guest's end."""
        return DriverError(f"guest {self.guest}: {self.trouble or 'it has ended'}")

    @contextlib.asynccontextmanager
    async def end_told(self) -> AsyncIterator[None]:
        """Context of an order that may come too late: it fails only after the guest's end was reported."""
        try:
            if self.state is State.ENDED:
                raise DriverError(f"guest {self.guest} has ended")
            yield
        except DriverError:
            if self.done or self.state is State.ENDED:
                await asyncio.shield(self.gone)
            raise
