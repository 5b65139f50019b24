"""Sending of telemetry: in order, and kept until the broker has acknowledged it, however long the bus is away."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from itertools import islice

import msgspec

from node_agent.backlog import Backlog
from testbed.bus.messages import encode
from testbed.bus.protocol import Bus
from testbed.bus.telemetry import Telemetry

ACK_S = 5.0  # without an acknowledgement the bus counts as away
LATE_PER_S = 200.0  # a node that comes back must not drown the others
_BATCH = 20  # in flight at once; the bus keeps their order
_LOOK_S = 0.1  # interval of checks of the connection
_LISTENS_WITHIN_S = 15.0


class Listener:
    """Whether published messages can be expected to reach the controller.

    After an outage an agent may be back at the broker before the controller is. A broker that has kept the controller's
    session queues messages for it; one that has lost the session acknowledges and discards them. A lease received on a
    new connection shows that messages will arrive: either the broker has kept its state, or the controller is back,
    which subscribes before it publishes.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._sure = asyncio.Event()
        self._heard_before = False

    def heard(self) -> None:
        """A lease has arrived."""
        self._heard_before = True
        self._sure.set()

    def lost(self) -> None:
        """The bus is disconnected."""
        self._sure.clear()

    async def ready(self) -> None:
        """Wait for the bus; if there was a lease before, also up to 15 s for the next, as no controller may exist."""
        while not self._bus.connected.is_set():
            self.lost()
            await self._bus.connected.wait()
        if self._heard_before:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LISTENS_WITHIN_S):
                    await self._sure.wait()
            self._sure.set()


class TelemetrySender:
    """Publishes samples on `topic` in order, at QoS 1; samples that must wait go to `backlog`."""

    def __init__(self, bus: Bus, topic: str, backlog: Backlog, listener: Listener) -> None:
        self._bus = bus
        self._topic = topic
        self._backlog = backlog
        self._listener = listener
        self._fresh: deque[Telemetry] = deque()
        self._news = asyncio.Event()

    def put(self, sample: Telemetry) -> None:
        """Take a sample."""
        self._fresh.append(sample)
        if self._backlog:
            self.set_aside()  # queued behind the samples that wait
        self._news.set()

    async def run(self) -> None:
        """Publish until cancelled; unacknowledged samples are left in the backlog."""
        try:
            while True:
                if self._backlog:
                    await self._send_late()
                elif self._fresh:
                    await self._send_fresh()
                else:
                    self._news.clear()
                    await self._news.wait()
        finally:
            self.set_aside()

    async def _send_fresh(self) -> None:
        samples = list(islice(self._fresh, _BATCH))
        if await self._publish([encode(sample) for sample in samples]):
            for _ in samples:
                self._fresh.popleft()
        else:
            self._listener.lost()
            self.set_aside()

    async def _send_late(self) -> None:
        await self._listener.ready()
        lines = await self._backlog.first(_BATCH)
        if not lines:
            return
        if await self._publish(lines):
            self._backlog.take(lines)
            await asyncio.sleep(len(lines) / LATE_PER_S)
        else:
            self._listener.lost()

    def set_aside(self) -> None:
        """Move waiting samples from memory to the backlog."""
        while self._fresh:
            self._backlog.append(encode(msgspec.structs.replace(self._fresh.popleft(), late=True)))

    async def _publish(self, payloads: Sequence[bytes]) -> bool:
        """Return whether the broker has acknowledged all of them."""
        if not self._bus.connected.is_set():
            return False
        loop = asyncio.get_running_loop()
        end_s = loop.time() + ACK_S
        sending = [asyncio.create_task(self._bus.publish(self._topic, payload)) for payload in payloads]
        waiting = set(sending)
        try:
            while waiting and self._bus.connected.is_set() and loop.time() < end_s:
                _, waiting = await asyncio.wait(waiting, timeout=_LOOK_S)
        finally:
            for task in waiting:
                task.cancel()  # the bus must not send it by itself once it is back: the controller may not be back yet
        outcomes = await asyncio.gather(*sending, return_exceptions=True)
        return all(outcome is None for outcome in outcomes)
