"""Bounded queue of outgoing messages, which are sent in order and kept until they are acknowledged."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import OrderedDict, deque

from testbed.bus.protocol import Bus, BusError, FullError, Message, check_size
from testbed.bus.topics import check_topic


class Parcel:
    """One message that waits to be sent, or for its acknowledgement."""

    __slots__ = ("delivered", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.delivered: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Outbox:
    """A queue whose head is a window of at most `window` parcels that were sent and are not acknowledged yet."""

    def __init__(self, limit: int, window: int) -> None:
        self._limit = limit
        self._window = window
        self._waiting: deque[Parcel] = deque()
        self._sent: OrderedDict[Parcel, None] = OrderedDict()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sent)

    def put(self, message: Message) -> Parcel:
        """Append a message, or raise `FullError` if the queue has `limit` messages."""
        if len(self) >= self._limit:
            raise FullError(f"{message.topic}: {self._limit} messages wait for the broker already: this one is refused")
        parcel = Parcel(message)
        self._waiting.append(parcel)
        self._changed.set()
        return parcel

    async def next(self) -> Parcel:
        """Wait until a parcel may be sent, mark it as sent, and return it."""
        while not self._waiting or len(self._sent) >= self._window:
            self._changed.clear()
            await self._changed.wait()
        parcel = self._waiting.popleft()
        self._sent[parcel] = None
        return parcel

    def acknowledge(self, parcel: Parcel) -> None:
        """Remove a parcel that the broker has acknowledged."""
        self._sent.pop(parcel, None)
        if not parcel.delivered.done():
            parcel.delivered.set_result(None)
        self._changed.set()

    def withdraw(self, parcel: Parcel) -> None:
        """Remove an unsent parcel; a sent parcel is sent again until it is acknowledged."""
        if parcel not in self._sent and parcel in self._waiting:
            self._waiting.remove(parcel)
            self._changed.set()

    def rewind(self) -> None:
        """Queue unacknowledged parcels again, before the others, after a loss of the connection."""
        self._waiting.extendleft(reversed(self._sent))
        self._sent.clear()
        self._changed.set()

    async def drained(self) -> None:
        """Wait until the queue is empty."""
        while len(self):
            self._changed.clear()
            await self._changed.wait()

    def fail(self, error: BusError) -> None:
        """Raise `error` in all tasks that still wait."""
        for parcel in (*self._sent, *self._waiting):
            if not parcel.delivered.done():
                parcel.delivered.set_exception(error)
                parcel.delivered.exception()  # retrieved, as possibly no task awaits it
        self._sent.clear()
        self._waiting.clear()
        self._changed.set()


class QueueingBus(Bus):
    """A bus whose QoS 1 messages wait in an outbox until they are acknowledged."""

    client_id: str
    _outbox: Outbox
    _open: bool

    async def publish(self, topic: str, payload: bytes, qos: int = 1, *, retain: bool = False) -> None:
        """See `Bus.publish`."""
        message = Message(check_topic(topic), payload, qos, retain)
        self._check_open(topic)
        check_size(topic, payload)
        if qos == 0:
            await self._send_once(message)
            return
        parcel = self._outbox.put(message)
        try:
            await parcel.delivered
        except asyncio.CancelledError:
            self._outbox.withdraw(parcel)
            raise

    @abstractmethod
    async def _send_once(self, message: Message) -> None:
        """Send a message of QoS 0 now, if there is a connection."""

    def _check_open(self, topic: str) -> None:
        if not self._open:
            raise BusError(f"{topic}: the bus of {self.client_id} is closed")
