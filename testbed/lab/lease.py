"""Holds the controller's lease of a lab: takes it before the first command, renews and releases it."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable

import msgspec

from testbed import __version__
from testbed.bus import topics
from testbed.bus.lease import LeaseGuard, is_one_of, token_digest
from testbed.bus.messages import Lease, OnControllerLoss, encode
from testbed.bus.protocol import Bus, BusError
from testbed.errors import RunError, UserError
from testbed.lab.ended_by import ended_by

RETAINED_PATIENCE_S = 0.3
_ECHO_WITHIN_S = 10.0
_NOBODY = "local"  # name of the controller in a lab without certificates
_log = logging.getLogger(__name__)


class LeaseTakenError(RunError):
    """Another controller ended this controller's lease while it drove the lab."""

    def __init__(self, lab: str, by: str) -> None:
        self.lab = lab
        self.by = by
        super().__init__(f"lab {lab!r} was taken by {by}: its guests are destroyed")


def holder_name() -> str:
    """Return this process's name as the holder of a lease: user, host and process."""
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
    party: str = "",
    run: str = "",
    succeeds: tuple[str, ...] = (),
    stays: Callable[[], bool] = lambda: False,
) -> AsyncIterator[None]:
    """Hold the lab's lease inside the block; raises `UserError` if another controller holds it, unless `force`.

    With `force` the other controller's lease is ended first, in the name of the controller `party` of our certificate,
    whereupon agents destroy that controller's guests. The lease of a dead controller is replaced once it has expired. A
    controller that resumes the same `run` replaces it at once with its token, one of `succeeds`.

    The lease is renewed after every third of its time to live, and after each loss of the connection, by means of
    `bus.on_lost`. At the end of the block the lease is released, unless it `stays` for the next controller of the run.
    The block is cancelled with `LeaseTakenError` when another controller takes the lab.
    """
    own = _Own(bus, lab, token, ttl_s, on_controller_loss, party or _NOBODY, run, succeeds)
    guard = LeaseGuard(asyncio.get_running_loop().time)
    news, away = asyncio.Event(), asyncio.Event()
    lost = False

    async def due() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ttl_s / 3):
                await away.wait()
                away.clear()
                await bus.connected.wait()  # the broker may have lost its retained messages
                await asyncio.sleep(RETAINED_PATIENCE_S)  # until a retained lease is received

    async def renew() -> None:
        while not lost:
            await due()
            if not lost:
                try:
                    await own.publish()
                except BusError as error:  # the next renewal may succeed: the lease lasts for three periods
                    _log.warning("the lease of lab %s is not renewed: %s", lab, error)

    async with ended_by() as end:
        held = False

        async def hear(heard_on: str, payload: bytes) -> None:
            nonlocal lost
            let_go = guard.hear(heard_on, payload)
            other = guard.lease
            if held and not lost and (let_go or (other is not None and other.digest != own.digest)):
                lost = True
                end(LeaseTakenError(lab, guard.released_by or (other.holder if other else "somebody")))
            news.set()

        await bus.subscribe(topics.release_topic(lab, topics.ANY), hear)
        await bus.subscribe(topics.lease_topic(lab), hear)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETAINED_PATIENCE_S):
                await news.wait()
        await _take(own, guard, news, force=force)
        held = True
        bus.on_lost = away.set
        renewal = asyncio.create_task(renew(), name="renew lease")
        try:
            yield
        finally:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)
            if not lost and not stays():
                held = False
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(2):
                        await own.publish(released=True)


class _Own:
    """Our own lease, and the messages about it and about other leases that we publish."""

    def __init__(
        self, bus: Bus, lab: str, token: str, ttl_s: float, on_controller_loss: OnControllerLoss, party: str,
        run: str, succeeds: tuple[str, ...],
    ) -> None:  # fmt: skip
        self.lab = lab
        self.digest = token_digest(token)
        self._bus = bus
        self._token = token
        self._ttl_s = ttl_s
        self._on_controller_loss: OnControllerLoss = on_controller_loss
        self._party = party
        self._run = run
        self._succeeds = succeeds
        self._holder = holder_name()
        self._since_unix_s = time.time()

    async def publish(self, *, released: bool = False) -> None:
        """Publish the record that takes, renews or releases our lease."""
        record = Lease(
            digest=self.digest, holder=self._holder, ttl_s=self._ttl_s, expires_unix_s=time.time() + self._ttl_s,
            since_unix_s=self._since_unix_s, on_controller_loss=self._on_controller_loss, released=released,
            token=self._token if released else "", release=__version__, run=self._run, succeeds=self._succeeds,
        )  # fmt: skip
        await self._bus.publish(topics.lease_topic(self.lab), encode(record), qos=1, retain=True)

    def follows(self, other: Lease) -> bool:
        """Whether this lease may replace another one at once."""
        return bool(self._run) and other.run == self._run and is_one_of(other.digest, self._succeeds)

    async def end_other(self, other: Lease) -> None:
        """Publish the end of another controller's lease, in our own name."""
        record = msgspec.structs.replace(other, released=True, released_by=self._holder)
        await self._bus.publish(topics.release_topic(self.lab, self._party), encode(record), qos=1)


async def _take(own: _Own, guard: LeaseGuard, news: asyncio.Event, *, force: bool) -> None:
    """Take the lab if it is free, or by force; raises `UserError` while another controller holds it."""
    lab, other = own.lab, guard.lease if force else None
    if other is not None:
        await own.end_other(other)
        await _heard(lab, news, lambda: guard.lease is None or guard.lease.digest != other.digest)
    if guard.lease is None or not own.follows(guard.lease):
        _check_free(lab, guard)
    await own.publish()
    if other is not None:  # for an agent that connected in between, and received only the other's retained record
        await own.end_other(other)
        await own.publish()
    await _heard(lab, news, lambda: guard.lease is not None and not own.follows(guard.lease))
    _check_free(lab, guard, own.digest)


def _check_free(lab: str, guard: LeaseGuard, but: str = "") -> None:
    """Raise `UserError` if the lab is held, except by the lease with the digest `but`."""
    lease = guard.lease
    if lease is not None and lease.digest != but:
        raise UserError(
            f"lab {lab!r} is driven by {lease.holder} (lease ends in {guard.remaining_s:.0f} s unless renewed); "
            "wait for it, use another lab name, or end that lease, and with it the run, by `testbed lab take SCENARIO "
            "--force`"
        )


async def _heard(lab: str, news: asyncio.Event, there: Callable[[], bool]) -> None:
    try:
        async with asyncio.timeout(_ECHO_WITHIN_S):
            while not there():
                news.clear()
                await news.wait()
    except TimeoutError:
        raise UserError(f"lab {lab!r}: the broker did not take the lease within {_ECHO_WITHIN_S:g} s") from None
