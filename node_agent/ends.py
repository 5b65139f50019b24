"""Ends of guests: told once, and again after the bus was away, as nothing else says that a guest is done."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

ENDS = ("ended", "done", "failed")
_KEPT = 1000  # the newest ends


async def _nowhere(end: bytes) -> None:
    raise RuntimeError(f"no bus yet for {end!r}")


class Ends:
    """Publishes ends of guests.

    A broker that is killed takes with it what it had acknowledged and not yet passed on to a busy controller. So all
    ends are told again after a loss of the bus; the controller takes each once.
    """

    def __init__(self) -> None:
        self._publish: Callable[[bytes], Awaitable[None]] = _nowhere
        self._told: deque[bytes] = deque(maxlen=_KEPT)
        self._due = asyncio.Event()
        self._lock = asyncio.Lock()

    def open(self, publish: Callable[[bytes], Awaitable[None]]) -> None:
        """Tell them by `publish(end)` from now on, which returns once the broker has acknowledged it."""
        self._publish = publish

    async def tell(self, end: bytes) -> None:
        """Publish an end, and keep it."""
        self._told.append(end)
        await self._publish(end)

    def lost(self) -> None:
        """Note that the bus was lost."""
        self._due.set()

    def forget(self) -> None:
        """Tell none of the ends again that were told so far; the controller that heard them has left the node."""
        self._told.clear()

    async def again(self) -> None:
        """After a loss of the bus, publish all ends again; somebody is known to listen."""
        async with self._lock:
            if not self._due.is_set():
                return
            self._due.clear()
            try:
                for end in tuple(self._told):
                    await self._publish(end)
            except BaseException:
                self._due.set()
                raise

    async def run(self, ready: Callable[[], Awaitable[None]]) -> None:
        """Do that after each loss, once `ready` returns; until cancelled."""
        while True:
            await self._due.wait()
            await ready()
            await self.again()
