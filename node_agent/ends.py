"""Events that guests ended or wait in a barrier, sent again after a loss of the bus: no other message carries them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

ENDS = ("ended", "done", "failed")
_KEPT = 1000  # the newest ends


async def _nowhere(end: bytes) -> None:
    raise RuntimeError(f"no bus yet for {end!r}")


class Ends:
    """Publishes the ends of guests, and the MPI barriers in which their ranks wait.

    A killed broker loses messages that it has acknowledged but not yet delivered to a busy controller. So all ends, and
    the barrier that each guest waits in, are sent again after a loss of the bus. The controller processes each once.
    """

    def __init__(self) -> None:
        self._publish: Callable[[bytes], Awaitable[None]] = _nowhere
        self._told: deque[bytes] = deque(maxlen=_KEPT)
        self._waits: dict[str, tuple[object, object, bytes]] = {}  # by guest: session, number, event
        self._due = asyncio.Event()
        self._lock = asyncio.Lock()

    def open(self, publish: Callable[[bytes], Awaitable[None]]) -> None:
        """Send events by `publish(event)` from now on, which returns once the broker has acknowledged the event."""
        self._publish = publish

    async def tell(self, end: bytes) -> None:
        """Publish the end of a guest, and keep it for `again`."""
        self._told.append(end)
        await self._publish(end)

    async def tell_barrier(self, guest: str, detail: Mapping[str, object], event: bytes) -> None:
        """Publish that a guest waits in a barrier, and keep it until the guest has passed, or is gone."""
        self._waits[guest] = detail.get("session"), detail.get("number"), event
        await self._publish(event)

    def passed(self, guest: str, session: str, number: int) -> None:
        """The guest has passed a barrier."""
        if self._waits.get(guest, ())[:2] == (session, number):
            del self._waits[guest]

    def gone(self, guest: str) -> None:
        """Forget the barrier of a guest that has left this node."""
        self._waits.pop(guest, None)

    def lost(self) -> None:
        """Note that the bus was lost."""
        self._due.set()

    def forget(self) -> None:
        """Repeat none of the ends sent so far; the controller that received them has left the node."""
        self._told.clear()
        self._waits.clear()

    async def again(self) -> None:
        """Publish all kept events again after a loss of the bus; call it once a controller is known to listen."""
        async with self._lock:
            if not self._due.is_set():
                return
            self._due.clear()
            try:
                for event in (*self._told, *(event for _, _, event in self._waits.values())):
                    await self._publish(event)
            except BaseException:
                self._due.set()
                raise

    async def run(self, ready: Callable[[], Awaitable[None]]) -> None:
        """Call `again` after each loss, once `ready` returns; until cancelled."""
        while True:
            await self._due.wait()
            await ready()
            await self.again()
