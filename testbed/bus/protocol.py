"""The publish-subscribe interface of every bus, independent of its transport."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, Self

from testbed.bus.quotas import MOST_MESSAGE_BYTES
from testbed.errors import TestbedError

Handler = Callable[[str, bytes], Awaitable[None]]


class BusError(TestbedError):
    """The bus cannot be reached, refuses this client, or cannot accept more messages."""


class FullError(BusError):
    """Too many messages already wait for the broker; a later attempt may succeed."""


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

    `online` returns the payload for each new connection, also after a loss, during which the broker has published
    `lost` (the last will). `offline` is the payload of a clean close.
    """

    topic: str
    online: Callable[[], bytes]
    offline: bytes
    lost: bytes
    retain: bool = True


def check_size(topic: str, payload: bytes) -> None:
    """Raise `BusError` for a message so large that a broker would close the connection, again after each reconnect."""
    if len(payload) > MOST_MESSAGE_BYTES:
        raise BusError(f"{topic}: a message of {len(payload)} bytes: expected at most {MOST_MESSAGE_BYTES}")


class Bus(Protocol):
    """A connection to the bus, open inside `async with`.

    `connected` is set while there is a connection; a bus reconnects by itself, and then subscribes again. `on_lost` is
    called whenever a connection has ended. `party` is the name of the controller whose certificate the bus presents,
    empty without one.
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

        With QoS 1 the message is kept over any number of connections until the broker acknowledges it, and the call
        returns then. Messages are sent in the order of the calls. If the caller is cancelled before the message was
        sent, the message is never sent. With QoS 0 the call returns once the message was sent; without a connection it
        is dropped, because it would be stale later. Raises `FullError` if too many messages wait already, `BusError` if
        the bus is closed.
        """

    async def subscribe(self, pattern: str, handler: Handler, qos: int = 1) -> None:
        """Await `handler(topic, payload)` for each message that matches; return once the broker acknowledges.

        All handlers of a bus are called one at a time in the order of arrival: a slow handler delays later messages,
        and a handler that waits for another message blocks forever. An exception in a handler is only logged. A message
        may be delivered twice (QoS 1), also because patterns overlap. Retained messages are delivered again after a
        reconnection. Raises `BusError` if the broker refuses the subscription.
        """
