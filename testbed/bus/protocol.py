"""The interface of every bus, independent of its transport: publish and subscribe."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, Self

from testbed.bus.quotas import MOST_MESSAGE_BYTES
from testbed.errors import TestbedError

Handler = Callable[[str, bytes], Awaitable[None]]


class BusError(TestbedError):
    """The bus cannot be reached, refuses this client, or cannot take more."""


class FullError(BusError):
    """Too many messages wait for the broker already; a later try may succeed."""


class NoBrokerError(BusError):
    """No broker could be reached at the given address (exit code 2, as for wrong input)."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Message:
    """A message to publish. QoS 0: at most once; QoS 1: at least once."""

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False


@dataclass(frozen=True, slots=True)
class Presence:
    """The published presence of a client, on one topic.

    `online` returns the payload for each new connection, also after a loss: the broker has published `lost` meanwhile.
    `offline` is the payload of a clean close.
    """

    topic: str
    online: Callable[[], bytes]
    offline: bytes
    lost: bytes
    retain: bool = True


def check_size(topic: str, payload: bytes) -> None:
    """Raise `BusError` for a message for which a broker would end every connection."""
    if len(payload) > MOST_MESSAGE_BYTES:
        raise BusError(f"{topic}: a message of {len(payload)} bytes: expected at most {MOST_MESSAGE_BYTES}")


class Bus(Protocol):
    """A connection to the bus, open inside `async with`.

    `connected` is set while there is a connection; a bus connects again by itself, and then subscribes again. `on_lost`
    is called whenever a connection has ended. `party` is the name of the controller whose certificate it shows, empty
    without one.
    """

    connected: asyncio.Event
    on_lost: Callable[[], None]
    party: str = ""

    async def __aenter__(self) -> Self:
        """Connect, or raise `BusError`."""

    async def __aexit__(self, *_error: object) -> None:
        """Send waiting messages, publish `offline`, and disconnect."""

    async def publish(self, topic: str, payload: bytes, qos: int = 1, *, retain: bool = False) -> None:
        """Send a message.

        QoS 1: kept until the broker acknowledges it, over any number of connections; returns then. Messages leave in
        the order of the calls. If the caller is cancelled before the message left, it never leaves. QoS 0: returns once
        it left; a message without a connection is dropped, because it would be stale later. Raises `FullError` if too
        much waits already, `BusError` if the bus is closed.
        """

    async def subscribe(self, pattern: str, handler: Handler, qos: int = 1) -> None:
        """Have `handler(topic, payload)` awaited for each message that matches; return once the broker acknowledges.

        All handlers of a bus are called one at a time in the order of arrival: a slow one delays those behind it, and
        one that waits for another message blocks forever. An exception in a handler is only logged. A message may come
        twice (QoS 1), also because patterns overlap; retained ones come again after a new connection. Raises `BusError`
        if the broker refuses.
        """
