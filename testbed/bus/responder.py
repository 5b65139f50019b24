"""Request and reply over the bus, the agent's side: acknowledge commands, execute each once, and reply."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Self

import msgspec

from testbed.bus.answers import AnswerJournal
from testbed.bus.envelope import decode_envelope
from testbed.bus.messages import (
    AnyAction,
    BadRecordError,
    Cancel,
    Command,
    OtherProtocolError,
    Reply,
    decode,
    encode,
)
from testbed.bus.no_room import NoRoomError
from testbed.bus.protocol import Bus, BusError
from testbed.bus.suspicious_acts import ActKind, ActLog
from testbed.bus.topics import is_reply_topic, node_topic
from testbed.bus.version import PROTOCOL, other_controller
from testbed.errors import FailureCode, TestbedError, shown

MOST_PENDING_REPLIES = 1000  # waiting for the broker: a tenth of a bus's queue, which leaves the rest to events
MOST_PENDING_BYTES = 16 << 20
_CLOSE_TIMEOUT_S = 2.0
_HONEST_REPEATS = 4  # of an answered command: a controller without a reply gives up after this many tries
_REPEATS_KEPT = 1000  # ids of answered commands that were repeated
_AGENT_ENDS = "interrupted: the agent is ending", FailureCode.NODE_LOST.value

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Run:
    """A command in progress. `cancelled` distinguishes a Cancel from the end of the agent."""

    task: asyncio.Task[None] | None = None
    handling: bool = False
    cancelled: bool = False

    def interrupt(self) -> None:
        """Cancel the handler; a task whose handler has not begun detects this and still replies."""
        if self.task is not None and self.handling:
            self.task.cancel()


class Responder:
    """Executes the commands sent to one node; open inside `async with`.

    `handle(action)` executes one command and returns its result. Each call is a task of its own, so commands run
    concurrently; they begin in the order of arrival. The task is cancelled at the command's deadline (`expired`) or by
    a Cancel (`cancelled`). A `TestbedError` gives text and code of a reply `failed`. Cancel itself is not passed to
    `handle`. `refuse(command)` returns why a command must not be executed (its lease), or None. Refused and unreadable
    commands are noted in `acts`. Closing cancels running commands.

    At most 1000 replies and 16 MiB of them wait for the broker. Further replies are not sent, are counted in
    `lost_replies`, and are kept in the journal, so that a repeated command gets its reply.
    """

    def __init__(
        self,
        bus: Bus,
        lab: str,
        node: str,
        handle: Callable[[AnyAction], Awaitable[dict[str, object]]],
        refuse: Callable[[Command], str | None],
        *,
        journal: AnswerJournal | None = None,
        acts: ActLog | None = None,
    ) -> None:
        self._acts = acts if acts is not None else ActLog()
        self._bus = bus
        self._lab = lab
        self._node = node
        self._reply = partial(Reply, node=node)
        self._handle = handle
        self._refuse = refuse
        self._journal = journal if journal is not None else AnswerJournal()
        self._runs: dict[str, _Run] = {}
        self._repeats: dict[str, int] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._pending_bytes = 0
        self.lost_replies = 0
        self._open = False

    async def __aenter__(self) -> Self:
        self._open = True
        await self._bus.subscribe(node_topic(self._lab, self._node, "command"), self._take)
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._open = False
        runs = list(self._runs.values())
        for run in runs:
            run.interrupt()
        if runs:
            await asyncio.wait([run.task for run in runs if run.task is not None])
        if self._sending:
            _, late = await asyncio.wait(self._sending, timeout=_CLOSE_TIMEOUT_S)
            for task in late:
                task.cancel()
        self._acts.flush()

    async def _take(self, topic: str, payload: bytes) -> None:
        if not self._open:
            return  # the sender detects the missing acknowledgement
        try:
            command = decode(Command, payload, topic)
        except BadRecordError as error:
            self._suspect(str(error))
            envelope = decode_envelope(payload)
            reason = error.reason
            if isinstance(error, OtherProtocolError):
                reason = other_controller(error.protocol, error.release)
            if envelope.id:
                self._answer(envelope.reply_to, self._reply(id=envelope.id, status="rejected", error=reason))
            return
        if not is_reply_topic(self._lab, command.reply_to, self._node):
            self._suspect(f"command {shown(command.id, 40)} with reply_to = {shown(command.reply_to, 80)}: ignored")
            return
        self._answer(command.reply_to, self._receive(command))

    def _receive(self, command: Command) -> Reply:
        """Start a new command, and return the immediate reply."""
        answered = self._journal.get(command.id)
        if answered is not None:
            self._repeated(command)
            return answered
        accepted = self._reply(id=command.id, status="accepted")
        if command.id in self._runs:
            return accepted
        reason = other_controller(command.v, command.release) if command.v != PROTOCOL else self._refuse(command)
        if reason is not None:
            tag = command.action.__struct_config__.tag
            self._suspect(f"{tag}, with its reply on {shown(command.reply_to, 80)}: {reason}")
            return self._reply(id=command.id, status="rejected", error=reason)
        if isinstance(command.action, Cancel):
            return self._cancel(command.id, command.action.command)
        self._journal.begin(accepted)
        run = self._runs[command.id] = _Run()
        run.task = asyncio.create_task(self._run(command, run), name=f"command {command.id}")
        return accepted

    def _repeated(self, command: Command) -> None:
        """Note a command that is repeated many times although it was answered; it is not executed again."""
        if command.id not in self._repeats and len(self._repeats) >= _REPEATS_KEPT:
            self._repeats.clear()
        count = self._repeats[command.id] = self._repeats.get(command.id, 0) + 1
        if count > _HONEST_REPEATS:
            tag = command.action.__struct_config__.tag
            self._suspect(f"{tag} {shown(command.id, 40)} was repeated {count} times after its answer: not executed")

    def _suspect(self, what: str) -> None:
        self._acts.note(self._node, ActKind.REFUSED_COMMAND, what)

    def _cancel(self, command_id: str, target: str) -> Reply:
        run = self._runs.get(target)
        if run is not None:
            run.cancelled = True
            run.interrupt()
        elif self._journal.get(target) is None:  # a command that arrives after its Cancel must not begin
            self._journal.finish(self._reply(id=target, status="cancelled", error="cancelled before it began"))
        return self._reply(id=command_id, status="done", result={"running": run is not None})

    async def _run(self, command: Command, run: _Run) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        ending = await self._ending(command, run)
        reply = msgspec.structs.replace(ending, elapsed_s=loop.time() - began_s)
        try:
            encode(reply)
        except (TypeError, ValueError) as error:
            reply = self._reply(id=command.id, status="failed", error=f"the result is no plain data: {error}")
        self._journal.finish(reply)
        del self._runs[command.id]
        self._answer(command.reply_to, reply)

    async def _ending(self, command: Command, run: _Run) -> Reply:
        """Execute a command, and return its final reply."""
        deadline = asyncio.timeout(command.deadline_s)
        run.handling = True
        try:
            if run.cancelled or not self._open:
                raise asyncio.CancelledError  # interrupted before it began
            async with deadline:
                return self._reply(id=command.id, status="done", result=await self._handle(command.action))
        except asyncio.CancelledError:
            if run.cancelled:
                return self._reply(id=command.id, status="cancelled", error="cancelled by its sender")
            why, code = ("interrupted", "") if self._open else _AGENT_ENDS
            return self._reply(id=command.id, status="failed", error=why, code=code)
        except TestbedError as error:
            if error.suspicious:
                self._suspect(f"{command.action.__struct_config__.tag}: {error}")
            result = error.result() if isinstance(error, NoRoomError) else {}
            code = error.failure_code.value if error.failure_code else ""
            return self._reply(id=command.id, status="failed", error=str(error), result=result, code=code)
        except Exception as error:  # noqa: BLE001  a bug in a driver must not end the agent
            if deadline.expired():
                return self._reply(id=command.id, status="expired", error=f"not done within {command.deadline_s:g} s")
            _log.exception("command %s: %s failed", command.id, type(command.action).__name__)
            return self._reply(id=command.id, status="failed", error=f"internal error: {type(error).__name__}: {error}")
        finally:
            run.handling = False

    def _answer(self, reply_to: str, reply: Reply) -> None:
        if not is_reply_topic(self._lab, reply_to, self._node):
            self._suspect(f"no reply to {shown(reply.id, 40)}: {shown(reply_to, 80)} is not a topic of replies")
            return
        payload = encode(reply)
        full = self._pending_bytes + len(payload) > MOST_PENDING_BYTES and self._sending
        if full or len(self._sending) >= MOST_PENDING_REPLIES:
            self._lose(reply.id, f"{len(self._sending)} replies wait for the broker already")
            return
        # Not awaited: a reply may wait long for the broker, and commands continue meanwhile. The order is kept.
        self._pending_bytes += len(payload)
        task = asyncio.create_task(self._publish(reply_to, reply.id, payload), name=f"reply {reply.id}")
        self._sending.add(task)
        task.add_done_callback(partial(self._sent, len(payload)))

    def _sent(self, size_bytes: int, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self._pending_bytes -= size_bytes

    async def _publish(self, topic: str, reply_id: str, payload: bytes) -> None:
        try:
            await self._bus.publish(topic, payload)
        except BusError as error:
            self._lose(reply_id, str(error))

    def _lose(self, reply_id: str, why: str) -> None:
        """Count a lost reply, and log one each time that their number has doubled."""
        self.lost_replies += 1
        if not self.lost_replies & (self.lost_replies - 1):
            _log.warning("%s: reply to %s lost, %d by now: %s", self._node, shown(reply_id, 40), self.lost_replies, why)
