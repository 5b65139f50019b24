"""The answer of a program to the order that waits for it; at most one order waits at a time."""

from __future__ import annotations

import asyncio

from node_agent.drivers.protocol import DriverError
from node_agent.guests.channel import Message


class Asked:
    """Passes the answer of a guest's program to the order that waits for it."""

    def __init__(self, guest: str) -> None:
        self._guest = guest
        self._kinds: tuple[str, ...] = ()
        self._answer: asyncio.Future[Message] | None = None

    async def wait(self, *kinds: str) -> Message:
        """Wait for a message of one of these kinds; raises `DriverError` if the guest ends instead."""
        self._kinds, self._answer = kinds, asyncio.get_running_loop().create_future()
        try:
            return await self._answer
        finally:
            self._answer = None

    def take(self, message: Message) -> None:
        """Take a message, which may be the answer."""
        if self._answer is not None and message.kind in self._kinds and not self._answer.done():
            self._answer.set_result(message)

    def fail(self, reason: str) -> None:
        """Fail the order that waits: there will be no answer."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(DriverError(f"guest {self._guest}: {reason}"))
