"""Buses to test: one in memory, one over amqtt, and one over Mosquitto if that is installed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.live import HANG_S
from testbed.bus.broker import broker
from testbed.bus.client import Bus, MqttBus, Presence
from testbed.bus.memory import MemoryHub
from testbed.bus.mosquitto import find_mosquitto

_PUBLISH = 3  # a type of packet


class Mailbox:
    """A handler that keeps its messages, and lets a test wait for them."""

    def __init__(self) -> None:
        self.got: list[tuple[str, bytes]] = []
        self._news = asyncio.Event()

    async def __call__(self, topic: str, payload: bytes) -> None:
        self.got.append((topic, payload))
        self._news.set()

    @property
    def payloads(self) -> list[bytes]:
        return [payload for _, payload in self.got]

    async def until(self, condition: Callable[[list[bytes]], bool]) -> list[bytes]:
        try:
            async with asyncio.timeout(HANG_S):
                while not condition(self.payloads):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"still waiting with {self.payloads[-20:]} ({len(self.got)} messages)") from None
        return self.payloads

    async def count(self, number: int) -> list[bytes]:
        return await self.until(lambda got: len(got) >= number)


class Wire:
    """A TCP relay in front of a broker that can break connections, or stop forwarding without closing them.

    With `late` = (a topic, a word) the broker's messages from the first one on that topic on are forwarded only after a
    packet of the client that contains the word.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._relays: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self.accepts = True
        self.port = 0
        self.late: tuple[bytes, bytes] | None = None
        self._spoken = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Wire]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            await server.wait_closed()
            self.cut()
            if self._relays:
                await asyncio.wait(self._relays)

    def cut(self) -> None:
        """Break every connection, as a crash or a switch does."""
        for writer in self._writers:
            writer.transport.abort()
        self._flows.set()
        self._spoken.set()

    def freeze(self) -> None:
        """Forward nothing any more, in either direction; for both ends the connection stays open."""
        self._flows.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.accepts:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, far_writer}
        for work in (self._relay(reader, far_writer), self._relay_packets(far_reader, writer)):
            task = asyncio.create_task(work)
            self._relays.add(task)
            task.add_done_callback(self._relays.discard)

    async def _relay(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                await self._flows.wait()
                sink.write(data)
                await sink.drain()
                if self.late is not None and self.late[1] in data:
                    self._spoken.set()
        self._part(sink)

    async def _relay_packets(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while packet := await _packet(source):
                if self.late is not None and packet[0] >> 4 == _PUBLISH and self.late[0] in packet:
                    await self._spoken.wait()
                await self._flows.wait()
                sink.write(packet)
                await sink.drain()
        self._part(sink)

    def _part(self, sink: asyncio.StreamWriter) -> None:
        self._writers.discard(sink)
        sink.close()


async def _packet(source: asyncio.StreamReader) -> bytes:
    """Return the next MQTT packet of a stream; raises `IncompleteReadError` at its end."""
    head = await source.readexactly(1)
    length, shift = 0, 0
    while True:
        head += await source.readexactly(1)
        length |= (head[-1] & 0x7F) << shift
        shift += 7
        if not head[-1] & 0x80:
            return head + await source.readexactly(length)


async def lost(bus: Bus) -> None:
    """Wait until a bus has detected the loss of its connection."""
    async with asyncio.timeout(HANG_S):
        while bus.connected.is_set():  # noqa: ASYNC110  an event can be waited for only in the other direction
            await asyncio.sleep(0)


class World:
    """A bus for tests of lost connections: `cut` closes the connection of a client, `mend` lets it connect again."""

    bus: Callable[..., AbstractAsyncContextManager[Bus]]
    cut: Callable[[str], Coroutine[Any, Any, None]]
    mend: Callable[[str], Coroutine[Any, Any, None]]


class MemoryWorld(World):
    def __init__(self) -> None:
        self._hub = MemoryHub()

    def bus(self, name: str, presence: Presence | None = None, **options: Any) -> Bus:
        return self._hub.client(name, presence, **options)

    async def cut(self, name: str) -> None:
        self._hub.drop(name)

    async def mend(self, name: str) -> None:
        self._hub.resume(name)


class MqttWorld(World):
    """Clients behind relays; they wait for a slow broker, unless a test gives them another limit."""

    def __init__(self, address: Any) -> None:
        self.address = address
        self.buses: dict[str, MqttBus] = {}
        self.wires: dict[str, Wire] = {}
        self.late: dict[str, tuple[bytes, bytes]] = {}  # see `Wire`, by client

    @asynccontextmanager
    async def bus(self, name: str, presence: Presence | None = None, **options: Any) -> AsyncIterator[Bus]:
        options = {
            "connect_timeout_s": HANG_S,
            "ack_timeout_s": HANG_S,
            "close_timeout_s": HANG_S,
            "keepalive_s": 3600,
            **options,
        }
        async with Wire(self.address.host, self.address.port).open() as wire:
            self.wires[name], wire.late = wire, self.late.get(name)
            async with MqttBus(replace(self.address, port=wire.port), name, presence, **options) as bus:
                self.buses[name] = bus
                yield bus

    async def cut(self, name: str) -> None:
        self.wires[name].accepts = False
        self.wires[name].cut()
        await lost(self.buses[name])

    async def mend(self, name: str) -> None:
        self.wires[name].accepts = True
        async with asyncio.timeout(HANG_S):
            await self.buses[name].connected.wait()


async def command_after_lease(w: Any, late: tuple[bytes, bytes] | None = None) -> None:
    """Assert that a client that comes back hears a retained lease before the command that waited for it."""
    async with w.bus("a") as a:
        async with w.bus("b") as b:
            await b.subscribe("command", Mailbox())
        await a.publish("command", b"go")
        await a.publish("lease", b"yours", retain=True)
        if late is not None:
            w.late["b"] = late
        both = Mailbox()
        async with w.bus("b") as b:
            await b.subscribe("lease", both)
            await b.subscribe("command", both)
            assert await both.count(2) == [b"yours", b"go"]


KINDS = [
    "memory",
    "embedded",
    pytest.param("mosquitto", marks=pytest.mark.skipif(find_mosquitto() is None, reason="Mosquitto is not installed")),
]
MQTT_KINDS = KINDS[1:]


@asynccontextmanager
async def world(kind: Any, state_dir: Path | None = None) -> AsyncIterator[Any]:
    if kind == "memory":
        yield MemoryWorld()
        return
    async with broker(kind, state_dir=state_dir) as running:
        assert running.kind == kind
        yield MqttWorld(running.address)


def run(work: Coroutine[Any, Any, None], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
    """Run a test; it fails if tasks remain, or if errors reach only the loop's exception handler."""
    complaints: list[str] = []

    async def watched() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: complaints.append(repr(context)))
        async with asyncio.timeout(HANG_S):
            await work
        for _ in range(5):
            await asyncio.sleep(0)
        left = {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}
        assert not left, f"tasks left behind: {left}"
        gc.collect()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(watched())
    gc.collect()
    assert not complaints, complaints


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that advances time to the next timer if nothing is ready."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("everything waits, and there is no timer")
            self.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop in virtual time: `asyncio.sleep(3600)` takes no real time, but advances `time()`."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s
