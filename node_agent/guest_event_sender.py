"""What guests do by themselves, told in its order: nothing waits for a result to be checked, not even an end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from node_agent.drivers.protocol import DriverEvent
from node_agent.verifier import Answer, Verifier, compare


async def tell(
    driver_events: asyncio.Queue[DriverEvent],
    verifier: Verifier,
    publish: Callable[[DriverEvent], Awaitable[None]],
    gone: Callable[[str], None],
) -> None:
    """Publish what happens until cancelled; `gone(guest)` is called first for a guest that has ended.

    The end of a guest whose result is still being checked is told as `ended`, and as `done` or `failed` afterwards.
    """
    checks: set[asyncio.Task[None]] = set()

    async def publish_checked(driver_event: DriverEvent, answer: asyncio.Task[Answer]) -> None:
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
    finally:
        for check in checks:
            check.cancel()
