"""Barriers of MPI jobs over the bus: the controller forwards the PMI keys that ranks publish to all agents of a job.

No node connects to the process manager of another node, and a node's messages about another node's rank are ignored.
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

from testbed.bus.guest_details import GuestReport, report_of
from testbed.bus.messages import GuestEvent, MpiPass, RankKeys
from testbed.bus.mpi_barriers import Barriers, Entered, UnequalKeysError
from testbed.bus.mpi_keys import MOST_KEYS, BadKeysError
from testbed.bus.requests import CommandFailedError, DeadlineError, NoAnswerError
from testbed.bus.suspicious_acts import ActKind
from testbed.errors import FailureCode, RunError, TestbedError, shown
from testbed.lab.job_guests import JobGuests
from testbed.lab.replies import Nodes

MOST_PASS_CHARS = 256 * 1024  # of the keys of one command: a quarter of the broker's limit
PASS_TRIES = 4  # for a node that is online, but does not execute the command in time or does not answer
AGAIN_AFTER_S = 2.0  # delay before the second try, doubled after each try
_SHOWN_CHARS = 80
_log = logging.getLogger(__name__)


class MpiError(RunError):
    """A node sent an impossible value about the barriers of an MPI job; the message has the node and the value."""


class _AtBarrier(msgspec.Struct, frozen=True):
    session: Annotated[str, msgspec.Meta(max_length=64)]
    number: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    keys: Annotated[dict[str, str], msgspec.Meta(max_length=MOST_KEYS)] = {}


@dataclass(slots=True, eq=False)
class MpiSession:
    """One life of a job's processes; it continues through saves of whole guests, restores and live migrations.

    `failure` gets an exception when a node violates the protocol while the job starts. The `name` of a session that an
    earlier controller has begun is empty until a rank reports it.
    """

    live: JobGuests
    name: str
    barriers: Barriers
    failure: asyncio.Future[None]
    said_by: dict[int, int] = field(default_factory=dict)  # by rank: the node that reported its last barrier
    starting: bool = True
    taken_over: bool = False

    def missing(self) -> list[str]:
        """Return the guests of ranks that have not entered the next barrier."""
        return [self.live.guests[rank] for rank in self.barriers.missing]


class MpiExchange:
    """The sessions of all MPI jobs of a fleet; the fleet calls `hear` for every event `mpi-barrier`."""

    def __init__(self, nodes: Nodes, deadline_s: float) -> None:
        """`deadline_s` is the deadline of a command to pass a barrier."""
        self._nodes = nodes
        self._deadline_s = deadline_s
        self._by_guest: dict[str, tuple[MpiSession, int]] = {}  # with the task
        self._passing: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def start(self, live: JobGuests) -> Iterator[MpiSession]:
        """Begin a session of a job; the block starts the job, and handles the session's `failure`."""
        over = {live, *(session.live for session, _ in self._by_guest.values() if session.live.state.ended)}
        self._by_guest = {guest: one for guest, one in self._by_guest.items() if one[0].live not in over}
        failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        session = MpiSession(live, os.urandom(8).hex(), Barriers(len(live.specs)), failure)
        self._by_guest |= {spec.guest: (session, spec.task) for spec in live.specs}
        try:
            yield session
        finally:
            session.starting = False
            if not failure.cancel():
                failure.exception()  # retrieved, so that asyncio does not log it if the start failed by another error

    def take_over(self, live: JobGuests) -> None:
        """Continue the session of a running job that an earlier controller has started."""
        failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failure.cancel()
        session = MpiSession(live, "", Barriers(len(live.specs)), failure, starting=False, taken_over=True)
        self._by_guest |= {spec.guest: (session, spec.task) for spec in live.specs}

    def let_pass(self, live: JobGuests) -> None:
        """Let ranks pass a barrier if all other ranks have ended: an earlier controller has let those pass.

        Call this after each end of a rank, as the end may be received before or after the barrier.
        """
        session, _ = self._by_guest.get(live.specs[0].guest, (None, 0))
        if session is None or not session.taken_over:
            return
        barriers = session.barriers
        if live.state.finished_tasks >= set(barriers.missing):
            for task in barriers.inside:
                self._beside(session, task, barriers.released + 1)

    def hear(self, node: int, event: GuestReport) -> None:
        """Process the report that a rank waits in a barrier; reports of other nodes or sessions are ignored."""
        session, task = self._by_guest.get(event.guest, (None, 0))
        if session is None:
            return
        live = session.live
        if live.specs[task].guest != event.guest:
            return  # a late event from a life before a restart
        if node not in live.state.places(task):
            if (node, task) not in live.state.been:
                what = f"it reports an MPI barrier of job {live.job_id} task {task}, which it never had"
                self._nodes.suspect(node, ActKind.FOREIGN_GUEST, what)
            return
        if live.state.ended:
            return
        try:
            self._enter(session, task, node, event.told)
            self.let_pass(live)
        except UnequalKeysError as error:
            self._blame(session, error)
        except (BadKeysError, MpiError) as error:
            self._nodes.suspect(node, ActKind.FALSE_REPORT, error)
            self._fail(session, task, f"node {self._nodes.name(node)}: guest {event.guest}: {error}")

    def _blame(self, session: MpiSession, error: UnequalKeysError) -> None:
        """Fail a job whose ranks publish inconsistent keys; with only two nodes, either node may be wrong."""
        nodes = sorted({session.said_by[rank] for rank in error.ranks})
        others = {session.said_by[rank] for rank in error.others} - set(nodes)
        if len(others) == 1:
            nodes = sorted([*nodes, *others])
        for node in nodes:
            self._nodes.suspect(node, ActKind.FALSE_REPORT, error)
        names = " or ".join(f"node {self._nodes.name(node)}" for node in nodes)
        guest = session.live.specs[error.ranks[0]].guest
        self._fail(session, error.ranks[0], f"{names}: guest {guest}: {error}")

    def _enter(self, session: MpiSession, task: int, node: int, detail: dict[str, object]) -> None:
        try:
            there = msgspec.convert(detail, _AtBarrier)
        except (msgspec.ValidationError, OverflowError) as error:
            what = str(error)
            raise MpiError(f"its MPI barrier is {shown(detail, _SHOWN_CHARS)}: {what[:1].lower()}{what[1:]}") from error
        if session.taken_over and not session.name:
            session.name = there.session
            session.barriers.go_on_at(there.number)
        if there.session != session.name:
            return  # a late event from an earlier life
        session.said_by[task] = node
        entered = session.barriers.enter(task, there.number, there.keys)
        if entered is not Entered.WAITS:
            for one in [task] if entered is Entered.AGAIN else range(len(session.live.specs)):
                self._beside(session, one, there.number)

    def _beside(self, session: MpiSession, task: int, number: int) -> None:
        passing = asyncio.create_task(
            self._pass(session, task, number, session.barriers.keys),
            name=f"{session.live.guests[task]} passes a barrier",
        )
        self._passing.add(passing)
        passing.add_done_callback(self._passing.discard)

    async def _pass(self, session: MpiSession, task: int, number: int, keys: Sequence[RankKeys]) -> None:
        """Send `MpiPass` to every node that may have the rank, as a moving guest may have left the reporting node.

        If a node refuses or does not answer because the rank has moved, the rank's new node reports the barrier again.
        """
        live, guest = session.live, session.live.specs[task].guest
        nodes = sorted(live.state.places(task))
        failures: dict[int, TestbedError] = {}
        for attempt in range(PASS_TRIES):
            if attempt:
                await asyncio.sleep(AGAIN_AFTER_S * 2 ** (attempt - 1))
                nodes = [node for node in failures if node in live.state.places(task)]
            if self._over(session, guest):
                return
            results = await asyncio.gather(*(self._pass_at(node, session, guest, number, keys) for node in nodes))
            failures = {node: error for node, error in zip(nodes, results, strict=True) if error is not None}
            if any(isinstance(error, CommandFailedError) for error in failures.values()):
                break
            for node, error in tuple(failures.items()):
                if not isinstance(error, DeadlineError | NoAnswerError):
                    _log.warning("guest %s: %s", guest, error)  # the node is lost, which fails the job separately
                    del failures[node]
            if not failures:
                return
        for node, error in failures.items():
            if not live.state.moving and node in live.state.places(task):  # else the new node reports the barrier again
                self._fail(session, task, str(error))

    def _over(self, session: MpiSession, guest: str) -> bool:
        return session.live.state.ended or self._by_guest.get(guest, (None,))[0] is not session

    async def _pass_at(
        self, node: int, session: MpiSession, guest: str, number: int, keys: Sequence[RankKeys]
    ) -> TestbedError | None:
        parts = _parts(keys)
        try:
            for part in parts:
                order = MpiPass(guest=guest, session=session.name, number=number, keys=part, last=part is parts[-1])
                await self._nodes.call(node, order, self._deadline_s)
        except TestbedError as error:
            restarted = error.failure_code is FailureCode.AGENT_RESTARTED  # then the new agent reports the barrier
            return None if restarted else error
        return None

    def _fail(self, session: MpiSession, task: int, reason: str) -> None:
        live = session.live
        if self._over(session, live.specs[task].guest):
            return
        if session.starting:
            if not session.failure.done():
                session.failure.set_exception(MpiError(reason))
            return
        for node in sorted(live.state.places(task))[:1]:
            detail: dict[str, object] = {"reason": reason, "code": FailureCode.GUEST_FAILED.value}
            name, guest = self._nodes.name(node), live.specs[task].guest
            failed = GuestEvent(node=name, guest=guest, event="failed", mono_ns=0, detail=detail)
            self._nodes.on_guest_event(node, report_of(failed))


def _parts(keys: Sequence[RankKeys]) -> list[tuple[RankKeys, ...]]:
    """Split keys into parts that each fit into a command; there is at least one part."""
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
