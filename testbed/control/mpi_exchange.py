"""The barriers of MPI jobs over the bus: what ranks publish comes from their agents, and goes to the others' agents.

No node connects to the process manager of another, and none is believed about the rank of another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from testbed.bus.messages import GuestEvent, MpiPass, RankKeys
from testbed.bus.mpi_barriers import Barriers, Entered
from testbed.bus.mpi_keys import MOST_KEYS, BadKeysError
from testbed.bus.requests import CommandFailedError
from testbed.control.cluster import LiveJob
from testbed.control.replies import Nodes
from testbed.errors import RunError, TestbedError, shown
from testbed.failure_codes import FailureCode
from testbed.suspicious_acts import ActKind

MOST_PASS_CHARS = 256 * 1024  # of the keys of one command: a quarter of what the broker lets through
_SHOWN_CHARS = 80
_log = logging.getLogger(__name__)


class MpiError(RunError):
    """A node says of the barriers of an MPI job what cannot be; the message names the node and the value."""


class _AtBarrier(msgspec.Struct, frozen=True):
    session: Annotated[str, msgspec.Meta(max_length=64)]
    number: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    keys: Annotated[dict[str, str], msgspec.Meta(max_length=MOST_KEYS)] = {}


@dataclass(slots=True, eq=False)
class MpiSession:
    """One life of a job's processes; it goes on where guests are saved whole, or migrate, and are restored.

    `failure` is set when a node breaks the rules while the job starts.
    """

    live: LiveJob
    name: str
    barriers: Barriers
    failure: asyncio.Future[None]
    at_node: dict[int, int] = field(default_factory=dict)  # where each rank entered its last barrier
    starting: bool = True

    def missing(self) -> list[str]:
        """Return the guests of ranks that the next barrier waits for."""
        return [self.live.guests[rank] for rank in self.barriers.missing]


class MpiExchange:
    """The sessions of all MPI jobs of a fleet, which tells of every `mpi-barrier` by `hear`."""

    def __init__(self, nodes: Nodes, deadline_s: float) -> None:
        """`deadline_s` is that of a command to pass a barrier."""
        self._nodes = nodes
        self._deadline_s = deadline_s
        self._by_guest: dict[str, MpiSession] = {}
        self._passing: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def start(self, live: LiveJob) -> Iterator[MpiSession]:
        """Begin a session of a job; inside the block the job starts, and a node's failure is the block's matter."""
        over = {live, *(session.live for session in self._by_guest.values() if session.live.ended)}
        self._by_guest = {guest: one for guest, one in self._by_guest.items() if one.live not in over}
        failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        session = MpiSession(live, os.urandom(8).hex(), Barriers(len(live.specs)), failure)
        self._by_guest |= dict.fromkeys(live.guests, session)
        try:
            yield session
        finally:
            session.starting = False
            if not failure.cancel():
                failure.exception()  # retrieved, so that asyncio does not log it: the start may have failed by another

    def hear(self, node: int, event: GuestEvent) -> None:
        """Take that a rank waits in a barrier; another node than the rank's has no say, nor has another session."""
        session = self._by_guest.get(event.guest)
        if session is None:
            return
        live = session.live
        task = live.guests.index(event.guest)
        if live.ended or node not in live.places(task):
            return
        try:
            self._enter(session, task, node, event.detail)
        except (BadKeysError, MpiError) as error:
            self._nodes.suspect(node, ActKind.FALSE_REPORT, error)
            self._fail(session, task, node, f"node {self._nodes.name(node)}: guest {event.guest}: {error}")

    def _enter(self, session: MpiSession, task: int, node: int, detail: dict[str, object]) -> None:
        try:
            there = msgspec.convert(detail, _AtBarrier)
        except (msgspec.ValidationError, OverflowError) as error:
            what = str(error)
            raise MpiError(f"its MPI barrier is {shown(detail, _SHOWN_CHARS)}: {what[:1].lower()}{what[1:]}") from error
        if there.session != session.name:
            return  # of an earlier life: it came late
        entered = session.barriers.enter(task, there.number, there.keys)
        session.at_node[task] = node
        if entered is not Entered.WAITS:
            tasks = [task] if entered is Entered.AGAIN else sorted(session.at_node)
            for one in tasks:
                self._beside(session, one, there.number)

    def _beside(self, session: MpiSession, task: int, number: int) -> None:
        passing = asyncio.create_task(
            self._pass(session, task, number, session.barriers.keys),
            name=f"{session.live.guests[task]} passes a barrier",
        )
        self._passing.add(passing)
        passing.add_done_callback(self._passing.discard)

    async def _pass(self, session: MpiSession, task: int, number: int, keys: Sequence[RankKeys]) -> None:
        node, guest = session.at_node[task], session.live.guests[task]
        parts = _parts(keys)
        try:
            for part in parts:
                order = MpiPass(guest=guest, session=session.name, number=number, keys=part, last=part is parts[-1])
                await self._nodes.call(node, order, self._deadline_s)
        except CommandFailedError as error:
            if session.at_node[task] == node:  # else it has gone on from there
                self._fail(session, task, node, str(error))
        except TestbedError as error:
            _log.warning("guest %s: %s", guest, error)  # its node is lost, which its job hears of by itself

    def _fail(self, session: MpiSession, task: int, node: int, reason: str) -> None:
        if self._by_guest.get(session.live.guests[task]) is not session:
            return
        if session.starting:
            if not session.failure.done():
                session.failure.set_exception(MpiError(reason))
        elif not session.live.ended and node in session.live.places(task):
            code = FailureCode.GUEST_FAILED.value
            detail: dict[str, object] = {"reason": reason, "code": code}
            self._nodes.on_guest_event(
                node, GuestEvent(node=self._nodes.name(node), guest=session.live.guests[task], event="failed",
                                 mono_ns=0, detail=detail)
            )  # fmt: skip


def _parts(keys: Sequence[RankKeys]) -> list[tuple[RankKeys, ...]]:
    """Cut keys into parts that each fit into a command; there is at least one."""
    parts: list[tuple[RankKeys, ...]] = []
    part: list[RankKeys] = []
    chars = 0
    for one in keys:
        more = sum(len(key) + len(value) + 8 for key, value in one.keys.items())
        if part and chars + more > MOST_PASS_CHARS:
            parts.append(tuple(part))
            part, chars = [], 0
        part.append(one)
        chars += more
    return [*parts, tuple(part)]
