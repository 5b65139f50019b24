"""Publication of guest events on the bus, in order; ends and barriers are sent again after a loss of the bus.

Events wait while the outbox is full: they are few, and a run that misses one of them fails.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from node_agent.drivers.protocol import DriverEvent
from node_agent.ends import ENDS, Ends
from node_agent.telemetry_sender import Listener
from node_agent.verifier import Answer, Verifier, compare
from testbed.bus import topics
from testbed.bus.event_details import told
from testbed.bus.messages import MPI_BARRIER, GuestEvent, encode
from testbed.bus.protocol import Bus, BusError, FullError
from testbed.errors import FailureCode

AGAIN_AFTER_S = 1.0
FINAL = ("done", "failed")  # after which nothing more is reported of a guest
_log = logging.getLogger(__name__)


class GuestEvents:
    """Takes events of guests by `put`, and publishes them as events of the node once the bus is open.

    `gone(guest)` is called for a guest that has ended, before its end is published, `told(guest)` once the broker has
    acknowledged its end. `refused` counts how often a full outbox refused an event.
    """

    def __init__(
        self, lab: str, node: str, verifier: Verifier, gone: Callable[[str], None],
        told: Callable[[str], None] = lambda _guest: None,
    ) -> None:  # fmt: skip
        self.ends = Ends()
        self.refused = 0
        self._node = node
        self._topic = topics.node_topic(lab, node, "event")
        self._verifier = verifier
        self._gone = gone
        self._told = told
        self._driver_events: asyncio.Queue[DriverEvent] = asyncio.Queue()

    def put(self, driver_event: DriverEvent) -> None:
        """Take an event, also before the bus is open."""
        self._driver_events.put_nowait(driver_event)

    def put_failed(self, guest: str, why: str, code: FailureCode) -> None:
        """Queue the event `failed` of a guest that the agent itself has ended."""
        detail: dict[str, object] = {"reason": why, "code": code.value}
        self.put(DriverEvent(guest, "failed", time.monotonic_ns(), detail))

    async def settle(self) -> None:
        """Wait until all events so far have been published, so that no reply overtakes them."""
        await self._driver_events.join()

    def open(self, bus: Bus, listener: Listener) -> None:
        """Note losses of this bus from now on, for the listener as well."""

        def lost() -> None:
            listener.lost()
            self.ends.lost()

        self.ends.open(partial(self._publish, bus))
        bus.on_lost = lost

    async def run(self, bus: Bus, listener: Listener) -> None:
        """Publish events until cancelled."""

        async def publish(driver_event: DriverEvent) -> None:
            event = GuestEvent(
                node=self._node, guest=driver_event.guest, event=driver_event.event, mono_ns=driver_event.mono_ns,
                detail=told(driver_event.event, driver_event.detail),
            )  # fmt: skip
            if not bus.connected.is_set():
                await listener.ready()
            if driver_event.event in ENDS:
                await self.ends.tell(encode(event))
                if driver_event.event in FINAL:
                    self._told(driver_event.guest)
            elif driver_event.event == MPI_BARRIER:
                await self.ends.tell_barrier(event.guest, event.detail, encode(event))
            else:
                await self._publish(bus, encode(event))

        await tell(self._driver_events, self._verifier, publish, self._gone)

    async def _publish(self, bus: Bus, event: bytes) -> None:
        """Publish an event, however long the outbox is full; an unpublishable event is logged and dropped."""
        while True:
            try:
                await bus.publish(self._topic, event)
            except FullError as error:
                self.refused += 1
                if not self.refused & (self.refused - 1):  # each time that their number has doubled
                    _log.warning("an event of a guest is sent later, after %d tries by now: %s", self.refused, error)
                await asyncio.sleep(AGAIN_AFTER_S)
            except BusError as error:
                _log.error("an event of a guest is left out: %s", error)
                return
            else:
                return


async def tell(
    driver_events: asyncio.Queue[DriverEvent],
    verifier: Verifier,
    publish: Callable[[DriverEvent], Awaitable[None]],
    gone: Callable[[str], None],
) -> None:
    """Publish events in order until cancelled; `gone(guest)` is called first for a guest that has ended.

    The end of a guest whose result is still being checked is published as `ended`, and later as `done` or `failed`.
    """
    checks: set[asyncio.Task[None]] = set()

    async def publish_checked(driver_event: DriverEvent, answer: asyncio.Future[Answer]) -> None:
        await publish(compare(driver_event, await answer))

    try:
        while True:
            driver_event = await driver_events.get()
            answer = verifier.take(driver_event)
            if driver_event.event in ("done", "failed"):
                gone(driver_event.guest)
            if answer is None:
                await publish(driver_event)
            elif answer.done():
                await publish(compare(driver_event, answer.result()))
            else:
                await publish(replace(driver_event, event="ended"))
                check = asyncio.create_task(publish_checked(driver_event, answer), name=f"check {driver_event.guest}")
                checks.add(check)
                check.add_done_callback(checks.discard)
            driver_events.task_done()
    finally:
        for check in checks:
            check.cancel()
