"""The nodes of a lab on the bus: presence, facts, telemetry, and commands."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from testbed.bus import topics
from testbed.bus.guest_details import GuestReport
from testbed.bus.messages import (
    ITSELF,
    MPI_BARRIER,
    AgentLimit,
    AnyAction,
    BadRecordError,
    ListGuests,
    NodeFacts,
    NodeStatus,
    OtherProtocolError,
    convert,
)
from testbed.bus.protocol import Bus
from testbed.bus.requests import Requester
from testbed.bus.suspicious_acts import ActKind, ActLog, SuspiciousError
from testbed.bus.telemetry import Telemetry
from testbed.bus.version import PROTOCOL, other_agent
from testbed.errors import FailureCode, RunError, UserError
from testbed.lab.liveness import (
    Announced,
    BusBack,
    BusLost,
    Change,
    Heard,
    Left,
    Noticed,
    Passed,
    Rule,
    Standing,
    Vanished,
    at_first,
    notice,
)
from testbed.lab.node_facts import check_facts
from testbed.lab.node_messages import Gate
from testbed.lab.replies import Guests, ask
from testbed.lab.sample_clock import SampleClock
from testbed.scenario.schema import DeadlinesTable, NodeTable

_log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.5
_LIMIT_EVERY_S = 60.0
LATE_NS = 2 * 10**9  # a sample that arrives later than this counts as late
_LOOKS_A_SILENCE = 4  # checks of the clock per `silence_s`
_STALL_LOOKS = 2  # delay, in periods of these checks, after which the controller counts as having been stopped
_MOST_BOOTS = 8  # lives of an agent whose clocks are kept


class NodeLostError(RunError):
    """A node is lost: its commands will not be executed."""

    failure_code = FailureCode.NODE_LOST


def limit_text(node: str, limit: AgentLimit) -> str:
    """Return a text about an agent's bound, for the display of a run."""
    if limit.what == "log":
        return f"node {node}: the log of its agent was full ({limit.bound_mib:.0f} MiB), and a new one was begun"
    if limit.state == "left":
        return f"node {node}: its agent uses {limit.value_mib:.0f} MiB again, and accepts work"
    return (
        f"node {node}: its agent uses {limit.value_mib:.0f} MiB, more than its bound of {limit.bound_mib:.0f} MiB: it "
        "accepts no new work until it uses less"
    )


def _log_limit(node: Node, limit: AgentLimit) -> None:
    _log.warning("%s", limit_text(node.name, limit))


def rule_of(deadlines: DeadlinesTable) -> Rule:
    """Return the liveness rule of a scenario; if all nodes are silent, they are lost after their leases' end."""
    silence_s, lost_s = deadlines.node_silence_s, deadlines.node_lost_s
    stall_s = _STALL_LOOKS * silence_s / _LOOKS_A_SILENCE
    return Rule(silence_s, lost_s, lost_s + deadlines.lease_ttl_s, stall_s)


@dataclass(slots=True, eq=False)
class Node:
    """Last state of one node; `messages` counts its messages, `telemetry` is its last sample that arrived in time."""

    index: int
    name: str
    facts: NodeFacts | None = None
    refused: UserError | None = None
    standing: Standing = Standing.UNKNOWN
    reason: str = "no message yet"
    messages: int = 0
    telemetry: Telemetry | None = None
    announced: asyncio.Event = field(default_factory=asyncio.Event)
    clocks: dict[str, SampleClock] = field(default_factory=dict)  # by boot
    limits_s: dict[tuple[str, str], float] = field(default_factory=dict)  # times of its agent's reports of its bounds
    boots: list[str] = field(default_factory=list)  # the newest, in the order of their announcements
    unread: tuple[str, bytes] | None = None  # topic and payload of the newest status, if it exceeded the quota

    @property
    def online(self) -> bool:
        """Whether commands are expected to reach the node."""
        return self.standing is Standing.ONLINE


class Fleet:
    """The nodes of a lab by index, in the order of the scenario.

    Callbacks run in the event loop:

    * `on_guest_event(node index, event)`: an event of a guest, except for ranks in barriers of MPI
    * `on_mpi_barrier(node index, event)`: a rank waits in a barrier of MPI
    * `on_telemetry(node, record, taken_ns)`: a sample that was taken at `taken_ns` by the loop's clock (see
      `SampleClock`). Each sample is delivered once, in its node's order, and marked `late` if it was delayed.
    * `on_node_change(node, change)`: a known node left, returned, or has another agent (see `liveness`)
    * `on_limit(node, limit)`: an agent has reached a bound of its own
    * `on_clock(node index, clock, mono_ns, heard_s)`: a reading of a node's clock that was received at `heard_s`

    While `watch` runs, the fleet is the requester's `Reach`: commands to a suspect node wait until the node is online
    again, or lost.
    """

    def __init__(
        self, bus: Bus, lab: str, names: Sequence[str], requester: Requester, rule: Rule,
        wanted: Sequence[NodeTable] = (), acts: ActLog | None = None,
    ) -> None:  # fmt: skip
        self.nodes = [Node(index, name) for index, name in enumerate(names)]
        self._by_name = {node.name: node for node in self.nodes}
        self._acts = acts if acts is not None else ActLog()
        self._gates = {node.index: Gate(node.name, asyncio.get_running_loop().time) for node in self.nodes}
        self._bus = bus
        self._lab = lab
        self._requester = requester
        self._rule = rule
        self._life = at_first(len(names), asyncio.get_running_loop().time())
        self._news = asyncio.Event()  # set, and replaced, when something has changed
        self._resigned = False
        self._wanted: Mapping[str, NodeTable] = {table.name: table for table in wanted}
        self.on_guest_event: Callable[[int, GuestReport], None] = lambda _node, _event: None
        self.on_mpi_barrier: Callable[[int, GuestReport], None] = lambda _node, _event: None
        self.on_telemetry: Callable[[Node, Telemetry, int], None] = lambda _node, _record, _taken_ns: None
        self.on_node_change: Callable[[Node, Change], None] = lambda _node, _change: None
        self.on_limit: Callable[[Node, AgentLimit], None] = _log_limit
        self.on_clock: Callable[[int, str, int, float], None] = lambda _node, _clock, _mono_ns, _heard_s: None

    async def open(self) -> None:
        """Subscribe to the status, telemetry and events of all nodes."""
        await self._bus.subscribe(topics.node_topic(self._lab, "+", "status"), self._status)
        await self._bus.subscribe(topics.node_topic(self._lab, "+", "telemetry"), self._telemetry)
        await self._bus.subscribe(topics.node_topic(self._lab, "+", "event"), self._event)

    async def wait_for_all(self, timeout_s: float) -> None:
        """Wait until every node has announced itself, or raise `UserError` with the silent nodes.

        A node with another protocol, or with facts that `check_facts` refuses, raises `UserError` at once.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    news = self._news
                    for node in self.nodes:  # refused nodes are reported before silent ones
                        if node.refused is not None:
                            raise node.refused
                    if all(node.announced.is_set() for node in self.nodes):
                        return
                    await news.wait()
        except TimeoutError:
            silent = ", ".join(f"{node.name} ({node.reason})" for node in self.nodes if not node.online)
            raise UserError(
                f"no answer within {timeout_s:g} s from {silent}: "
                "is node-agent running there, with this broker and lab?"
            ) from None

    async def wait_until_empty(self, timeout_s: float) -> None:
        """Wait until no node has guests or images, as those of the previous run may still be ending.

        Raises `UserError` after `timeout_s`.
        """
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + timeout_s
        while held := await self._held(timeout_s):
            if loop.time() >= ends_s:
                raise UserError(
                    f"{'; '.join(held)}: guests and images of a run whose controller died: continue it by `testbed "
                    "resume`, or remove them by `testbed lab take`"
                )
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _held(self, timeout_s: float) -> list[str]:
        held = await asyncio.gather(*(ask(self, node.index, ListGuests(), Guests, timeout_s) for node in self.nodes))
        for node, there in zip(self.nodes, held, strict=True):
            self.on_clock(node.index, there.clock, there.mono_ns, asyncio.get_running_loop().time())
        return [
            f"node {node.name} holds {', '.join([*(sample.guest for sample in there.guests), *there.images])}"
            for node, there in zip(self.nodes, held, strict=True)
            if there.guests or there.images
        ]

    async def wait_for_any(self, timeout_s: float) -> None:
        """Wait for `timeout_s` at most until every node has announced itself; the other nodes are suspect then."""
        with contextlib.suppress(UserError):
            await self.wait_for_all(timeout_s)
        lives = [
            replace(life, standing=Standing.SUSPECT) if life.standing is Standing.UNKNOWN else life
            for life in self._life.nodes
        ]
        self._life = replace(self._life, nodes=tuple(lives))
        for node, life in zip(self.nodes, lives, strict=True):
            node.standing = life.standing

    def facts(self, node: int) -> NodeFacts:
        """Return the facts of a node that has announced itself."""
        facts = self.nodes[node].facts
        if facts is None:
            raise UserError(f"node {self.nodes[node].name}: {self.nodes[node].reason}")
        return facts

    def name(self, node: int) -> str:
        """Return the name of a node."""
        return self.nodes[node].name

    async def call(self, node: int, action: AnyAction, deadline_s: float) -> dict[str, object]:
        """Send a command to a node and return the result; raises `TestbedError` if it fails or gets no reply."""
        reply = await self._requester.call(self.nodes[node].name, action, deadline_s)
        return reply.result

    async def reachable(self, name: str) -> None:
        """See `Reach`; raises `NodeLostError`."""
        node = self._by_name[name]
        while not (node.online and self._life.on_bus):
            if node.standing is Standing.LOST or self._resigned:
                away = "cannot be reached: the bus is away" if node.online else f"is {node.standing} ({node.reason})"
                raise NodeLostError(f"node {name} {away}")
            await self._news.wait()

    def resign(self) -> None:
        """Stop waiting for nodes: commands to absent ones fail from now on."""
        self._resigned = True
        self._tell_news()

    def _tell_news(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def heard(self, name: str) -> int:
        """See `Reach.heard`."""
        return self._by_name[name].messages

    async def watch(self) -> None:
        """Check the clock and the bus periodically, until cancelled; meanwhile commands wait for suspect nodes."""
        loop = asyncio.get_running_loop()
        self._requester.reach = self
        self._life = replace(self._life, at_s=loop.time())
        try:
            while True:
                await asyncio.sleep(self._rule.silence_s / _LOOKS_A_SILENCE)
                on_bus = self._bus.connected.is_set()
                if on_bus != self._life.on_bus:
                    self._notice(BusBack() if on_bus else BusLost())
                self._notice(Passed(loop.time()))
        finally:
            self._requester.reach = None

    def _node(self, topic: str) -> Node | None:
        name = topics.node_of(topic)
        return self._by_name.get(name) if name else None

    def _notice(self, what: Noticed) -> None:
        self._life, changes = notice(self._life, what, self._rule)
        for change in changes:
            node = self.nodes[change.node]
            node.standing, node.reason = change.after, change.reason
            if change.before is Standing.UNKNOWN:
                node.announced.set()
            else:
                self.on_node_change(node, change)
        if changes or isinstance(what, BusBack):
            self._tell_news()

    async def _status(self, topic: str, payload: bytes) -> None:
        node = self._node(topic)
        if node is None or not payload:
            return
        again, node.unread = node.unread == (topic, payload), None
        try:
            status = self._gates[node.index].read(NodeStatus, topic, payload)
        except OtherProtocolError as error:
            self._refuse(node, UserError(other_agent(node.name, error.protocol, error.release)))
            return
        except SuspiciousError as error:
            if not again:
                self._suspect(node, error)
            if error.kind is ActKind.FLOOD:
                node.unread = topic, payload
            else:
                node.reason = str(error)
            return
        self._note_boot(node, status)
        node.messages += 1
        if status.online and status.v != PROTOCOL:
            release = status.release or (status.facts.versions.get("testbed", "") if status.facts else "")
            self._refuse(node, UserError(other_agent(node.name, status.v, release)))
            return
        if status.online and status.facts is not None:
            try:
                check_facts(node.name, status.facts, self._wanted.get(node.name))
            except UserError as error:
                self._acts.note(node.name, ActKind.FALSE_REPORT, error)
                self._refuse(node, error)
                return
            node.refused = None
            node.facts = status.facts
            self._notice(Announced(node.index, status.boot))
        else:
            self._notice(Left(node.index) if status.left else Vanished(node.index))
            if node.standing is Standing.UNKNOWN:
                node.reason = status.reason

    def _refuse(self, node: Node, error: UserError) -> None:
        """Treat an unusable node as one that has left."""
        node.refused = error
        node.reason = str(error)
        self._notice(Left(node.index, str(error)))
        node.announced.set()
        self._tell_news()

    async def _telemetry(self, topic: str, payload: bytes) -> None:
        node = self._node(topic)
        if node is None:
            return
        if node.unread is not None:  # a running agent does not publish its status again
            await self._status(*node.unread)
        try:
            record = self._gates[node.index].telemetry(topic, payload)
        except OtherProtocolError:  # reported with the node's status
            return
        except SuspiciousError as error:
            self._suspect(node, error)
            return
        heard_s = asyncio.get_running_loop().time()
        heard_ns = int(heard_s * 1e9)
        self.on_clock(node.index, record.clock, record.mono_ns, heard_s)
        clock = node.clocks.setdefault(record.boot, SampleClock())
        if len(node.clocks) > _MOST_BOOTS:
            del node.clocks[next(iter(node.clocks))]
        taken_ns = clock.taken_ns(record.mono_ns, heard_ns, late=record.late)
        if taken_ns is None:
            return
        if heard_ns - taken_ns > LATE_NS and not record.late:
            record = msgspec.structs.replace(record, late=True)
        if not record.late:  # a late sample may have waited at the broker, and does not prove that its node is online
            node.telemetry = record
            node.messages += 1
            self._notice(Heard(node.index))
        self.on_telemetry(node, record, taken_ns)

    async def _event(self, topic: str, payload: bytes) -> None:
        node = self._node(topic)
        if node is None:
            return
        try:
            event, left_out = self._gates[node.index].event(topic, payload)
            if (event.guest, event.event) == (ITSELF, "limit"):
                self._limit(node, convert(event.told, AgentLimit))
                return
        except OtherProtocolError:  # reported with the node's status
            return
        except SuspiciousError as error:
            self._suspect(node, error)
            return
        except BadRecordError as error:
            self._acts.note(node.name, ActKind.BAD_MESSAGE, error)
            return
        if left_out:
            what = f"event {event.event!r} of {event.guest}: {left_out} fields of its detail are left out"
            self._acts.note(node.name, ActKind.BAD_MESSAGE, what)
        (self.on_mpi_barrier if event.event == MPI_BARRIER else self.on_guest_event)(node.index, event)

    def _limit(self, node: Node, limit: AgentLimit) -> None:
        """Forward a report of an agent's bound at most once per minute, as an agent may send it at any rate."""
        now_s, key = asyncio.get_running_loop().time(), (limit.what, limit.state)
        if now_s - node.limits_s.get(key, float("-inf")) >= _LIMIT_EVERY_S:
            node.limits_s[key] = now_s
            self.on_limit(node, limit)

    def _suspect(self, node: Node, error: SuspiciousError) -> None:
        self._acts.note(node.name, error.kind, error.what)

    def suspect(self, node: int, kind: ActKind, what: object) -> None:
        """See `Nodes`."""
        self._acts.note(self.nodes[node].name, kind, what)

    def _note_boot(self, node: Node, status: NodeStatus) -> None:
        """Record the life of an agent that announces itself; report two agents of one name that alternate."""
        if not status.online or node.boots[-1:] == [status.boot]:
            return
        if status.boot in node.boots:
            what = "two agents of this name run, and take turns: end one (a forgotten agent, a copied folder)"
            self._acts.note(node.name, ActKind.NAMESAKE, what)
            node.boots.remove(status.boot)
        node.boots = [*node.boots[1 - _MOST_BOOTS :], status.boot]
