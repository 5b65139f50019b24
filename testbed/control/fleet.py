"""The nodes of a lab, as the bus shows them: presence, facts, telemetry, and a way to command each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from testbed.bus import topics
from testbed.bus.messages import (
    AnyAction,
    BadRecordError,
    GuestEvent,
    ListGuests,
    NodeFacts,
    NodeStatus,
    Telemetry,
    decode,
    guests_in,
)
from testbed.bus.protocol import Bus
from testbed.bus.requests import Requester
from testbed.control.sample_clock import SampleClock
from testbed.errors import UserError

_LOOK_AGAIN_S = 0.5
LATE_NS = 2 * 10**9  # a sample that comes later than that is taken for one that had to wait somewhere
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Node:
    """One node as last heard; `heard_s` is the loop's time, `telemetry` the last sample that came in time."""

    index: int
    name: str
    facts: NodeFacts | None = None
    online: bool = False
    boot: str = ""
    reason: str = "not heard of yet"
    heard_s: float = 0.0
    telemetry: Telemetry | None = None
    announced: asyncio.Event = field(default_factory=asyncio.Event)
    clocks: dict[str, SampleClock] = field(default_factory=dict)  # by boot


class Fleet:
    """Nodes by index, in the order of the scenario.

    Callbacks run in the event loop: `on_guest_event(node index, event)`, `on_telemetry(node, record, taken_ns)`,
    `on_node_change(node)` when a node that was there goes, or comes back. `taken_ns` is when the sample was taken, by
    the loop's clock (see `SampleClock`); each sample is handed on once, in the order in which its node took them, and
    marked `late` if it waited, be it at its agent or elsewhere. What is late tells nothing of how a node is now.
    """

    def __init__(self, bus: Bus, lab: str, names: Sequence[str], requester: Requester, silence_s: float) -> None:
        self.nodes = [Node(index, name) for index, name in enumerate(names)]
        self._by_name = {node.name: node for node in self.nodes}
        self._bus = bus
        self._lab = lab
        self._requester = requester
        self._silence_s = silence_s
        self.on_guest_event: Callable[[int, GuestEvent], None] = lambda _node, _event: None
        self.on_telemetry: Callable[[Node, Telemetry, int], None] = lambda _node, _record, _taken_ns: None
        self.on_node_change: Callable[[Node], None] = lambda _node: None

    async def open(self) -> None:
        """Start to listen."""
        await self._bus.subscribe(topics.node_topic(self._lab, "+", "status"), self._status)
        await self._bus.subscribe(topics.node_topic(self._lab, "+", "telemetry"), self._telemetry)
        await self._bus.subscribe(topics.node_topic(self._lab, "+", "event"), self._event)

    async def wait_for_all(self, timeout_s: float) -> None:
        """Wait until every node has announced itself, or raise `UserError` that names the silent ones."""
        try:
            async with asyncio.timeout(timeout_s):
                for node in self.nodes:
                    await node.announced.wait()
        except TimeoutError:
            silent = ", ".join(f"{node.name} ({node.reason})" for node in self.nodes if not node.online)
            raise UserError(
                f"no answer within {timeout_s:g} s from {silent}: "
                "is node-agent running there, with this broker and lab?"
            ) from None

    async def wait_until_empty(self, timeout_s: float) -> None:
        """Wait until no node holds a guest: those of the run before may be on their way out. Raises `UserError`."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + timeout_s
        while held := await self._held(timeout_s):
            if loop.time() >= ends_s:
                raise UserError(
                    f"{'; '.join(held)}: guests of a run whose controller died; remove them with `testbed lab take`"
                )
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _held(self, timeout_s: float) -> list[str]:
        replies = await asyncio.gather(*(self.call(node.index, ListGuests(), timeout_s) for node in self.nodes))
        held = [guests_in(reply) for reply in replies]
        return [
            f"node {node.name} holds {', '.join(sample.guest for sample in guests)}"
            for node, guests in zip(self.nodes, held, strict=True)
            if guests
        ]

    def facts(self, node: int) -> NodeFacts:
        """Return what a node that has announced itself is."""
        facts = self.nodes[node].facts
        if facts is None:
            raise UserError(f"node {self.nodes[node].name}: {self.nodes[node].reason}")
        return facts

    async def call(self, node: int, action: AnyAction, deadline_s: float) -> dict[str, object]:
        """Command a node and return the driver's report; raises `TestbedError` when it fails or does not answer."""
        reply = await self._requester.call(self.nodes[node].name, action, deadline_s)
        return reply.result

    async def watch(self) -> None:
        """Mark nodes offline whose telemetry has ceased; runs until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._silence_s / 4)
            for node in self.nodes:
                silent_s = loop.time() - node.heard_s
                if node.online and silent_s > self._silence_s:
                    self._set_online(node, online=False, reason=f"silent for {silent_s:.1f} s")

    def _node(self, topic: str) -> Node | None:
        name = topics.node_of(topic)
        return self._by_name.get(name) if name else None

    def _set_online(self, node: Node, *, online: bool, reason: str) -> None:
        changed = node.online != online
        node.online, node.reason = online, reason
        if online and not node.announced.is_set():
            node.announced.set()
        elif changed:
            self.on_node_change(node)

    async def _status(self, topic: str, payload: bytes) -> None:
        node = self._node(topic)
        if node is None or not payload:
            return
        try:
            status = decode(NodeStatus, payload, topic)
        except BadRecordError as error:
            _log.warning("%s", error)
            node.reason = str(error)
            return
        node.heard_s = asyncio.get_running_loop().time()
        if status.online and status.facts is not None:
            restarted = node.online and node.boot not in ("", status.boot)
            node.facts, node.boot = status.facts, status.boot
            if restarted:
                self._set_online(node, online=False, reason="its agent restarted")
            self._set_online(node, online=True, reason="")
        else:
            self._set_online(node, online=False, reason=status.reason or "offline")

    async def _telemetry(self, topic: str, payload: bytes) -> None:
        node = self._node(topic)
        if node is None:
            return
        try:
            record = decode(Telemetry, payload, topic)
        except BadRecordError as error:
            _log.warning("%s", error)
            return
        node.heard_s = asyncio.get_running_loop().time()
        heard_ns = int(node.heard_s * 1e9)
        clock = node.clocks.setdefault(record.boot, SampleClock())
        taken_ns = clock.taken_ns(record.mono_ns, heard_ns, late=record.late)
        if taken_ns is None:
            return
        if heard_ns - taken_ns > LATE_NS and not record.late:
            record = msgspec.structs.replace(record, late=True)
        if not record.late:
            node.telemetry = record
            if not node.online and node.announced.is_set() and node.reason.startswith("silent"):
                self._set_online(node, online=True, reason="")
        self.on_telemetry(node, record, taken_ns)

    async def _event(self, topic: str, payload: bytes) -> None:
        node = self._node(topic)
        if node is None:
            return
        try:
            self.on_guest_event(node.index, decode(GuestEvent, payload, topic))
        except BadRecordError as error:
            _log.warning("%s", error)
