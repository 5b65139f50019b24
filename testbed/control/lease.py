"""The controller's hold on a lab: taken before anything is commanded, renewed, and given back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator

from testbed.bus import topics
from testbed.bus.messages import BadRecordError, Lease, decode, encode
from testbed.bus.protocol import Bus
from testbed.errors import UserError

RETAINED_PATIENCE_S = 0.3


def new_token() -> str:
    """Return a fresh lease token."""
    return secrets.token_hex(16)


@contextlib.asynccontextmanager
async def hold_lease(bus: Bus, lab: str, token: str, ttl_s: float) -> AsyncIterator[None]:
    """Hold the lab's lease inside the block; raises `UserError` if another controller holds it.

    A lease of a controller that died is taken over once its time has run out.
    """
    topic = topics.lease_topic(lab)
    found: asyncio.Queue[Lease] = asyncio.Queue()

    async def hear(_topic: str, payload: bytes) -> None:
        if payload:
            with contextlib.suppress(BadRecordError):
                await found.put(decode(Lease, payload, topic))

    await bus.subscribe(topic, hear)
    holder = f"{socket.gethostname()}:{os.getpid()}"
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(RETAINED_PATIENCE_S):
            other = await found.get()
            left_s = other.expires_unix_s - time.time()
            if not other.released and left_s > 0:
                raise UserError(
                    f"lab {lab!r} is driven by {other.holder} (lease ends in {left_s:.0f} s unless renewed); "
                    "wait for it, or use another lab name"
                )

    async def publish(*, released: bool) -> None:
        lease = Lease(token=token, holder=holder, ttl_s=ttl_s, expires_unix_s=time.time() + ttl_s, released=released)
        await bus.publish(topic, encode(lease), qos=1, retain=True)

    async def renew() -> None:
        while True:
            await asyncio.sleep(ttl_s / 3)
            await publish(released=False)

    await publish(released=False)
    renewal = asyncio.create_task(renew(), name="renew lease")
    try:
        yield
    finally:
        renewal.cancel()
        await asyncio.gather(renewal, return_exceptions=True)
        with contextlib.suppress(Exception):
            async with asyncio.timeout(2):
                await publish(released=True)
