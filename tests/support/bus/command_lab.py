"""A controller and an agent on one bus, which loses the messages that a test selects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from support.bus.bus_worlds import Mailbox
from testbed.bus.answers import AnswerJournal
from testbed.bus.memory import MemoryHub
from testbed.bus.messages import AnyAction, Calibrate, Command, Hold, Ping, Reply, Stop, decode
from testbed.bus.protocol import Bus, Handler
from testbed.bus.requests import Requester
from testbed.bus.responder import Responder
from testbed.errors import RunError

COMMANDS = "testbed/v1/lab/node/n1/command"
REPLIES = "testbed/v1/lab/controller/ctl/reply/n1"


class Lossy:
    """A bus that loses the messages for which `loses(topic, payload)` holds."""

    def __init__(self, bus: Bus, loses: Callable[[str, bytes], bool]) -> None:
        self.party = ""
        self._bus = bus
        self._loses = loses

    async def publish(self, topic: str, payload: bytes, qos: int = 1, *, retain: bool = False) -> None:
        if not self._loses(topic, payload):
            await self._bus.publish(topic, payload, qos, retain=retain)

    async def subscribe(self, pattern: str, handler: Handler, qos: int = 1) -> None:
        await self._bus.subscribe(pattern, handler, qos)


class Node:
    """A minimal agent for these tests: it records the actions that it began, and how they ended."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.begun = asyncio.Event()
        self.refusal: str | None = None

    async def perform(self, action: AnyAction) -> dict[str, object]:
        match action:
            case Calibrate(cpu_s=cpu_s):  # it takes `cpu_s` seconds
                self.log.append(f"begin {cpu_s:g}")
                self.begun.set()
                try:
                    await asyncio.sleep(cpu_s)  # speed: the command's own length, mostly in virtual time
                except asyncio.CancelledError:
                    self.log.append(f"cancelled {cpu_s:g}")
                    raise
                self.log.append(f"end {cpu_s:g}")
                return {"units_per_s": 2 * cpu_s}
            case Stop(guest=guest):
                raise RunError(f"no guest {guest}")
            case Hold():
                return {"at": object()}
            case Ping():
                return {}
        raise ZeroDivisionError("a mistake in the driver")

    def refuse(self, command: Command) -> str | None:
        return None if self.refusal is None else f"{self.refusal} (not {command.lease})"


class Stubborn(Node):
    """An agent that takes half a minute for every command, also to abort one."""

    async def perform(self, action: AnyAction) -> dict[str, object]:
        work = asyncio.create_task(asyncio.sleep(30))
        while not work.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(work)
        return {"did": type(action).__name__}


class Lab:
    """A controller `ctl` and an agent of `n1` at one hub."""

    def __init__(self, loses: Callable[[str, bytes], bool] = lambda _topic, _payload: False) -> None:
        self.hub = MemoryHub()
        self.node = Node()
        self.replies = Mailbox()
        self.commands = Mailbox()
        self._loses = loses

    @asynccontextmanager
    async def agent(self, journal: AnswerJournal | None = None) -> AsyncIterator[Responder]:
        async with (
            self.hub.client("agent") as bus,
            Responder(Lossy(bus, self._loses), "lab", "n1", self.node.perform, self.node.refuse, journal=journal) as it,
        ):
            yield it

    @asynccontextmanager
    async def controller(self, **options: Any) -> AsyncIterator[Requester]:
        async with self.hub.client("spy") as spy, self.hub.client("controller") as bus:
            await spy.subscribe(REPLIES, self.replies)
            await spy.subscribe(COMMANDS, self.commands)
            async with Requester(Lossy(bus, self._loses), "lab", "ctl", lambda: "token", **options) as requester:
                yield requester

    def statuses(self) -> list[str]:
        return [decode(Reply, payload).status for payload in self.replies.payloads]
