"""What guests do by themselves, told in its order: nothing waits for a result to be checked, not even an end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from node_agent.drivers.protocol import Happening
from node_agent.verifier import Answer, Verifier, compare


async def tell(
    happenings: asyncio.Queue[Happening],
    verifier: Verifier,
    publish: Callable[[Happening], Awaitable[None]],
    gone: Callable[[str], None],
) -> None:
    """Publish what happens until cancelled; `gone(guest)` is called first for a guest that has ended.

    The end of a guest whose result is still being checked is told as `ended`, and as `done` or `failed` afterwards.
    """
    checks: set[asyncio.Task[None]] = set()

    async def publish_checked(happening: Happening, answer: asyncio.Task[Answer]) -> None:
        await publish(compare(happening, await answer))

    try:
        while True:
            happening = await happenings.get()
            answer = verifier.take(happening)
            if happening.event in ("done", "failed"):
                gone(happening.guest)
            if answer is None:
                await publish(happening)
            elif answer.done():
                await publish(compare(happening, answer.result()))
            else:
                await publish(replace(happening, event="ended"))
                check = asyncio.create_task(publish_checked(happening, answer), name=f"check {happening.guest}")
                checks.add(check)
                check.add_done_callback(checks.discard)
    finally:
        for check in checks:
            check.cancel()
