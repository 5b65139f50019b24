"""Request and reply over the bus, the controller's side: send commands, repeat them, and wait for replies."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Protocol, Self

from testbed import __version__
from testbed.bus.envelope import decode_envelope
from testbed.bus.failure_codes import known_code
from testbed.bus.messages import AnyAction, BadRecordError, Cancel, Command, Reply, decode, encode
from testbed.bus.protocol import Bus, BusError
from testbed.bus.quotas import Bucket, Quota
from testbed.bus.suspicious_acts import ActKind
from testbed.bus.topics import ANY, node_topic, replier_of, reply_topic
from testbed.errors import TestbedError, shown

_CANCEL_DEADLINE_S = 10.0
_CLOSE_TIMEOUT_S = 2.0
_REMEMBERED = 10_000  # ids of commands
_MOST_NODES = 10_000  # with a count of unexpected replies
_REPLIES = Quota(2000, 250, 1 << 16)  # of one node; the largest reply, that to a watch, counts as fifteen
_MOST_STRANGE = 100  # unexpected replies per node; late replies to an earlier controller of the same name are no attack

_log = logging.getLogger(__name__)


class CommandError(TestbedError):
    """A command was not done. `reply` is the agent's last reply, None without one; `failure_code` is its code."""

    def __init__(self, node: str, action: AnyAction, reason: str, reply: Reply | None = None) -> None:
        self.node = node
        self.action = action
        self.reason = reason
        self.reply = reply
        self.failure_code = known_code(reply.code) if reply is not None else None
        super().__init__(f"{node}: {action.__struct_config__.tag}: {reason}")


class CommandFailedError(CommandError):
    """The agent replied that the command failed, was cancelled, or was refused; `reply` has the status."""


class NoAnswerError(CommandError):
    """The agent does not acknowledge the command. The effect of the command, if any, is unknown."""


class DeadlineError(CommandError):
    """The command was not done in time. The agent has aborted it, or was sent a Cancel."""


class Reach(Protocol):
    """Reachability of the nodes, as known from their other messages."""

    async def reachable(self, node: str) -> None:
        """Return once commands can be expected to reach a node; raises `TestbedError` if they cannot."""

    def heard(self, node: str) -> int:
        """Return the number of messages from a node so far, without replies."""


class Requester:
    """Sends commands to nodes and waits for their replies; open inside `async with`.

    `lease` returns the token in force. A command that is not acknowledged within `ack_timeout_s` is sent again under
    the same id, `tries` times in all. A command that runs is sent again every `ask_again_s`, which detects a dead agent
    long before the deadline and recovers a lost reply. Agents execute each id once. Each node has a reply topic of its
    own.

    `on_round_trip(node, seconds)` is called with the time from publishing a command to the agent's first reply. A
    command that was sent again is left out, because the reply cannot be matched to one of the sends.
    `on_bad_reply(node, kind, text)` is called for a message that is not a reply of the addressed node, for many replies
    to commands that were never sent, and for more replies than a node has reason to send.

    With a `reach`, tries during a node's complete silence do not count, and their time is added to the deadline:
    `reach` decides how long to wait for a silent node.
    """

    def __init__(
        self,
        bus: Bus,
        lab: str,
        client: str,
        lease: Callable[[], str],
        *,
        ack_timeout_s: float = 2.0,
        tries: int = 4,
        ask_again_s: float = 10.0,
    ) -> None:
        self._bus = bus
        self._lab = lab
        self._client = bus.party or client
        self._lease = lease
        self._ack_timeout_s = ack_timeout_s
        self._tries = tries
        self._ask_again_s = ask_again_s
        self.reach: Reach | None = None
        self.on_bad_reply: Callable[[str, ActKind, str], None] = lambda node, _kind, text: _log.warning(
            "%s: %s", node, text
        )
        self.on_round_trip: Callable[[str, float], None] = lambda _node, _seconds: None
        self._replies: dict[str, tuple[str, asyncio.Queue[Reply]]] = {}  # by id, with the addressed node
        self._strange: dict[str, int] = {}  # replies to others, by node
        self._buckets: dict[str, Bucket] = {}  # of the addressed nodes
        self._given: dict[str, None] = {}  # ids of the newest commands, in their order
        self._cancels: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._bus.subscribe(reply_topic(self._lab, self._client, ANY), self._take)
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._cancels:
            _, late = await asyncio.wait(self._cancels, timeout=_CLOSE_TIMEOUT_S)
            for task in late:
                task.cancel()

    async def call(self, node: str, action: AnyAction, deadline_s: float) -> Reply:
        """Send `action` to `node`, and return the final reply, which has the status `done`.

        The agent has `deadline_s` from the arrival of the command. Raises `CommandFailedError`, `NoAnswerError` or
        `DeadlineError`. When the caller is cancelled, or no answer came, the agent is sent a Cancel.
        """
        command = self._command(node, action, deadline_s, self._lease())
        replies = asyncio.Queue[Reply]()
        self._replies[command.id] = node, replies
        try:
            reply = await self._ask(node, command, replies)
        except (asyncio.CancelledError, NoAnswerError, DeadlineError):
            self._give_up(node, command)
            raise
        finally:
            del self._replies[command.id]
        if reply.status == "done":
            return reply
        reason = f"{reply.status}: {reply.error or 'no reason given'}"
        if reply.status == "expired":
            raise DeadlineError(node, action, reason, reply)
        raise CommandFailedError(node, action, reason, reply)

    def _command(self, node: str, action: AnyAction, deadline_s: float, lease: str) -> Command:
        if node not in self._buckets:
            self._buckets[node] = Bucket(_REPLIES, asyncio.get_running_loop().time)
        command = Command(
            id=secrets.token_hex(8),
            lease=lease,
            reply_to=reply_topic(self._lab, self._client, node),
            deadline_s=deadline_s,
            action=action,
            release=__version__,
        )
        self._given[command.id] = None
        if len(self._given) > _REMEMBERED:
            del self._given[next(iter(self._given))]
        return command

    async def _ask(self, node: str, command: Command, replies: asyncio.Queue[Reply]) -> Reply:
        loop = asyncio.get_running_loop()
        payload = encode(command)
        silent = 0
        sent = False
        ends_s: float | None = None  # by our clock, a little later than the agent's own deadline
        while silent < self._tries:
            asked_s = loop.time()
            heard_before = await self._reachable(node)
            begin_s = loop.time()
            reply = await self._send_and_hear(node, payload, replies)
            again, sent = sent, True
            away = reply is None and heard_before is not None and heard_before == self._heard(node)
            if ends_s is not None:
                ends_s += (loop.time() if away else begin_s) - asked_s
            if reply is None:
                silent += not away
                continue
            if not again:
                self.on_round_trip(node, loop.time() - begin_s)
            silent = 0
            if ends_s is None:
                ends_s = loop.time() + command.deadline_s + self._ack_timeout_s
            while not reply.final:
                wait_s = min(self._ask_again_s, ends_s - loop.time())
                if wait_s <= 0:
                    raise DeadlineError(
                        node,
                        command.action,
                        f"no result within {command.deadline_s:g} s, nor did the agent give up",
                        reply,
                    )
                heard = await _within(wait_s, replies)
                if heard is None:
                    break
                reply = heard
            else:
                return reply
        waited_s = self._tries * self._ack_timeout_s
        raise NoAnswerError(node, command.action, f"no acknowledgement within {waited_s:g} s, sent {self._tries} times")

    async def _reachable(self, node: str) -> int | None:
        """Wait until commands can reach a node; return the number of its messages so far, None if unknown."""
        if self.reach is None:
            return None
        await self.reach.reachable(node)
        return self.reach.heard(node)

    def _heard(self, node: str) -> int | None:
        return None if self.reach is None else self.reach.heard(node)

    async def _send_and_hear(self, node: str, payload: bytes, replies: asyncio.Queue[Reply]) -> Reply | None:
        try:
            async with asyncio.timeout(self._ack_timeout_s):
                # Without a connection the message waits inside publish, and is withdrawn at the timeout.
                await self._bus.publish(node_topic(self._lab, node, "command"), payload)
                return await replies.get()
        except TimeoutError:
            return None

    def _give_up(self, node: str, command: Command) -> None:
        cancel = self._command(node, Cancel(command=command.id), _CANCEL_DEADLINE_S, command.lease)
        task = asyncio.create_task(self._send(node, cancel), name=f"cancel {command.id} on {node}")
        self._cancels.add(task)
        task.add_done_callback(self._cancels.discard)

    async def _send(self, node: str, command: Command) -> None:
        try:
            await self._bus.publish(node_topic(self._lab, node, "command"), encode(command))
        except BusError as error:
            _log.warning("%s: cannot send it the Cancel of a command: %s", node, error)

    async def _take(self, topic: str, payload: bytes) -> None:
        node = replier_of(topic)
        bucket = self._buckets.get(node)
        if bucket is None:
            self._note_strange(node)
            return
        if not bucket.take(len(payload)):
            self.on_bad_reply(node, ActKind.FLOOD, f"more replies than {_REPLIES.per_s:g} a second: dropped")
            return
        envelope = decode_envelope(payload)
        asked, waiting = self._replies.get(envelope.id, ("", None))
        if envelope.id and waiting is None:
            if envelope.id not in self._given:
                self._note_strange(node)
            return
        try:
            reply = decode(Reply, payload, topic)
        except BadRecordError as error:
            self.on_bad_reply(node, ActKind.BAD_MESSAGE, str(error))
            return
        if waiting is None or not asked == node == reply.node:
            what = f"a reply of {shown(reply.node, 40)} to a command that was sent to {asked or 'no node'}"
            self.on_bad_reply(node, ActKind.FALSE_REPORT, what)
            return
        waiting.put_nowait(reply)

    def _note_strange(self, node: str) -> None:
        """Count a reply to a command that was never sent; its topic identifies the possible sender."""
        if node in self._strange or len(self._strange) < _MOST_NODES:
            count = self._strange[node] = self._strange.get(node, 0) + 1
            if count > _MOST_STRANGE:
                what = f"{count} replies to commands that this controller never sent"
                self.on_bad_reply(node, ActKind.BAD_MESSAGE, what)


async def _within(timeout_s: float, replies: asyncio.Queue[Reply]) -> Reply | None:
    try:
        async with asyncio.timeout(timeout_s):
            return await replies.get()
    except TimeoutError:
        return None
