"""The controller's hold on a lab: taken before anything is commanded, renewed, and given back."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import socket
import time
from collections.abc import AsyncIterator, Callable

import msgspec

from testbed import __version__
from testbed.bus import topics
from testbed.bus.lease import LeaseGuard, token_digest
from testbed.bus.messages import Lease, OnControllerLoss, encode
from testbed.bus.protocol import Bus
from testbed.control.ended_by import ended_by
from testbed.errors import RunError, UserError

RETAINED_PATIENCE_S = 0.3
_ECHO_WITHIN_S = 10.0


class LeaseTakenError(RunError):
    """Somebody else ended this controller's lease while it drove the lab."""

    def __init__(self, lab: str, by: str) -> None:
        self.lab = lab
        self.by = by
        super().__init__(f"lab {lab!r} was taken by {by}: its guests are destroyed")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.lab, self.by)


def holder_name() -> str:
    """Return what this process is called as the holder of a lease: user, host and process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}:{os.getpid()}"


@contextlib.asynccontextmanager
async def hold_lease(
    bus: Bus,
    lab: str,
    token: str,
    ttl_s: float,
    *,
    on_controller_loss: OnControllerLoss = "remove",
    force: bool = False,
) -> AsyncIterator[None]:
    """Hold the lab's lease inside the block; raises `UserError` if another controller holds it, unless `force`.

    With `force` the other's lease is ended first, whereupon agents destroy its guests. A lease of a controller that
    died is taken over once its time has run out. `LeaseTakenError` ends the block when somebody else takes the lab.
    """
    topic, digest, holder = topics.lease_topic(lab), token_digest(token), holder_name()
    since_unix_s = time.time()
    guard = LeaseGuard(asyncio.get_running_loop().time)
    news = asyncio.Event()
    lost = False

    async def publish(lease: Lease) -> None:
        await bus.publish(topic, encode(lease), qos=1, retain=True)

    def own(*, released: bool = False) -> Lease:
        return Lease(
            digest=digest, holder=holder, ttl_s=ttl_s, expires_unix_s=time.time() + ttl_s, since_unix_s=since_unix_s,
            on_controller_loss=on_controller_loss, released=released, release=__version__,
        )  # fmt: skip

    async def renew() -> None:
        while not lost:
            await asyncio.sleep(ttl_s / 3)
            if not lost:
                await publish(own())

    async with ended_by() as end:
        held = False

        async def hear(heard_on: str, payload: bytes) -> None:
            nonlocal lost
            let_go = guard.hear(heard_on, payload)
            other = guard.lease
            if held and not lost and (let_go or (other is not None and other.digest != digest)):
                lost = True
                end(LeaseTakenError(lab, guard.released_by or (other.holder if other else "somebody")))
            news.set()

        await bus.subscribe(topic, hear)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETAINED_PATIENCE_S):
                await news.wait()
        if force and (other := guard.lease) is not None:
            await publish(msgspec.structs.replace(other, released=True, released_by=holder))
            await _heard(lab, news, lambda: guard.lease is None or guard.lease.digest != other.digest)
        _check_free(lab, guard)
        await publish(own())
        await _heard(lab, news, lambda: guard.lease is not None)
        _check_free(lab, guard, digest)
        held = True
        renewal = asyncio.create_task(renew(), name="renew lease")
        try:
            yield
        finally:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)
            if not lost:
                held = False
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(2):
                        await publish(own(released=True))


def _check_free(lab: str, guard: LeaseGuard, but: str = "") -> None:
    """Raise `UserError` if somebody holds the lab, `but` the lease of this digest."""
    lease = guard.lease
    if lease is not None and lease.digest != but:
        raise UserError(
            f"lab {lab!r} is driven by {lease.holder} (lease ends in {guard.remaining_s:.0f} s unless renewed); "
            "wait for it, use another lab name, or end it with `testbed lab take --force`"
        )


async def _heard(lab: str, news: asyncio.Event, there: Callable[[], bool]) -> None:
    try:
        async with asyncio.timeout(_ECHO_WITHIN_S):
            while not there():
                news.clear()
                await news.wait()
    except TimeoutError:
        raise UserError(f"lab {lab!r}: the broker did not take the lease within {_ECHO_WITHIN_S:g} s") from None
