"""The in-process bus, with the behaviour of MQTT but without a broker, for dry runs and tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from testbed.bus.inbox import Inbox
from testbed.bus.outbox import Outbox, QueueingBus
from testbed.bus.protocol import BusError, Handler, Message, Presence
from testbed.bus.topics import matches


class MemoryHub:
    """The state that a broker would have: retained messages, and the sessions of its clients."""

    def __init__(self) -> None:
        self.retained: dict[str, Message] = {}
        self._sessions: dict[str, _Session] = {}

    def client(self, client_id: str, presence: Presence | None = None, *, outbox_limit: int = 10_000) -> MemoryBus:
        """Return a bus that connects to this hub when it is entered."""
        return MemoryBus(self, client_id, presence, outbox_limit)

    def drop(self, client_id: str) -> None:
        """Cut a client's connection, as a crash of its machine would; the hub publishes the client's last will."""
        bus = self._session(client_id).bus
        if bus is not None:
            bus.lose()

    def resume(self, client_id: str) -> None:
        """Let a client that was dropped connect again."""
        bus = self._session(client_id).dropped
        if bus is None:
            raise BusError(f"{client_id} was not dropped")
        bus.attach()

    def _session(self, client_id: str) -> _Session:
        return self._sessions.setdefault(client_id, _Session())

    def take(self, message: Message) -> None:
        """Retain a message if its flag is set, and deliver it to all subscribers."""
        if message.retain and message.payload:
            self.retained[message.topic] = message
        elif message.retain:
            self.retained.pop(message.topic, None)
        for session in self._sessions.values():
            for pattern, qos in session.patterns.items():
                if matches(pattern, message.topic):
                    session.put(message, min(qos, message.qos))
                    break  # one copy per client, whose inbox finds the handlers by topic


class _Session:
    """The hub's session of a client id: it outlives connections, and keeps QoS 1 messages in between."""

    def __init__(self) -> None:
        self.patterns: dict[str, int] = {}
        self.inbox: asyncio.Queue[Message] = asyncio.Queue()
        self.bus: MemoryBus | None = None
        self.dropped: MemoryBus | None = None

    def put(self, message: Message, qos: int) -> None:
        if self.bus is not None or qos:
            self.inbox.put_nowait(message)


class MemoryBus(QueueingBus):
    """A `Bus` at a `MemoryHub`; make it with `MemoryHub.client`."""

    def __init__(self, hub: MemoryHub, client_id: str, presence: Presence | None, outbox_limit: int) -> None:
        self.client_id = client_id
        self.connected = asyncio.Event()
        self.on_lost: Callable[[], None] = lambda: None
        self._hub = hub
        self._session = hub._session(client_id)  # noqa: SLF001  the two halves of one module
        self._presence = presence
        self._outbox = Outbox(outbox_limit, window=1)
        self._inbox = Inbox()
        self._tasks: list[asyncio.Task[None]] = []
        self._handlers: asyncio.Task[None] | None = None
        self._open = False

    async def __aenter__(self) -> Self:
        self._open = True
        self._handlers = asyncio.create_task(self._inbox.run(), name=f"bus {self.client_id}: handlers")
        self.attach()
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._open = False
        if self.connected.is_set():
            await self._outbox.drained()
            if self._presence is not None:
                self._hub.take(Message(self._presence.topic, self._presence.offline, retain=self._presence.retain))
        tasks = self._detach()
        if self._handlers is not None:
            self._handlers.cancel()
            tasks.append(self._handlers)
        self._session.dropped = None
        self._outbox.fail(BusError(f"the bus of {self.client_id} was closed"))
        await asyncio.wait(tasks)

    async def _send_once(self, message: Message) -> None:
        if self.connected.is_set():
            self._hub.take(message)

    async def subscribe(self, pattern: str, handler: Handler, qos: int = 1) -> None:
        """See `Bus.subscribe`."""
        self._check_open(pattern)
        self._inbox.add(pattern, handler, qos)
        await self.connected.wait()
        self._session.patterns[pattern] = qos
        for message in self._hub.retained.values():
            if matches(pattern, message.topic):
                self._session.put(message, min(qos, message.qos))
        while not self._session.inbox.empty():  # a broker sends these before it confirms the subscription
            self._take(self._session.inbox.get_nowait())
        self._inbox.begin(pattern)

    def attach(self) -> None:
        """Connect: show presence, then send and receive."""
        if self._session.bus is not None:
            self._session.bus.lose()  # a second client of the same id takes the session over
        self._session.bus, self._session.dropped = self, None
        if self._presence is not None:
            self._hub.take(Message(self._presence.topic, self._presence.online(), retain=self._presence.retain))
        name = f"bus {self.client_id}"
        self._tasks = [
            asyncio.create_task(self._send(), name=f"{name}: send"),
            asyncio.create_task(self._receive(), name=f"{name}: receive"),
        ]
        self.connected.set()

    def lose(self) -> None:
        """Lose the connection: the hub publishes `lost` in this client's name."""
        self._detach()
        self.on_lost()
        self._session.dropped = self
        if self._presence is not None:
            self._hub.take(Message(self._presence.topic, self._presence.lost, retain=self._presence.retain))

    def _detach(self) -> list[asyncio.Task[None]]:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if self._session.bus is self:
            self._session.bus = None
        self.connected.clear()
        self._outbox.rewind()
        return tasks

    async def _send(self) -> None:
        while True:
            parcel = await self._outbox.next()
            self._hub.take(parcel.message)
            self._outbox.acknowledge(parcel)

    async def _receive(self) -> None:
        while True:
            self._take(await self._session.inbox.get())

    def _take(self, message: Message) -> None:
        self._inbox.put(message.topic, message.payload)
