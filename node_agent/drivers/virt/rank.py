"""The rank in a virtual machine: its process manager is this agent, over the guest's control channel.

The guest sends one line of its rank at a time and keeps it until it is answered. It also keeps a text, `state`, with
the session and the barriers entered so far. With it, the agent of the next node can continue.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

from node_agent.drivers.pmi.server import Barrier, PmiServer
from node_agent.drivers.pmi.wire import PmiError
from node_agent.drivers.protocol import DriverError, DriverEvent, SuspectError
from node_agent.drivers.virt.channel import RefusedError
from node_agent.guests.wire import Frame
from testbed.bus.messages import MPI_BARRIER, GuestSpec, RankKeys

AGAIN_AFTER_S = 1.0  # a guest that is held, or whose channel is closed, takes no answer
_STATE = re.compile(r"([0-9a-f]{16})\.([0-9]{1,4})")

Order = Callable[[str, Sequence[tuple[str, object]]], Awaitable[Frame]]


class GuestRank:
    """Answers the rank of one guest; `fail` is called for a message that no rank would send."""

    def __init__(
        self, spec: GuestSpec, order: Order, tell: Callable[[DriverEvent], None], fail: Callable[[str], None]
    ) -> None:
        self._spec = spec
        self._order = order
        self._tell = tell
        self._fail = fail
        self._server: PmiServer | None = None
        self._line = 0  # the number of the rank's last line
        self._answering: asyncio.Task[None] | None = None

    @property
    def joined(self) -> bool:
        """Whether it has joined its MPI job on this node."""
        return self._server is not None

    async def start(self, program: str, session: str) -> None:
        """Start the rank's program in the guest; raises `DriverError`."""
        if self.joined:
            raise SuspectError(f"guest {self._spec.guest} has joined its MPI job already: expected one join")
        place = self._spec.program
        self._server = PmiServer(place.rank, place.ranks, session)
        fields = [("rank", place.rank), ("ranks", place.ranks), ("state", self._state()), ("arg", program)]
        await self._order("rank", fields)

    def hear(self, frame: Frame) -> None:
        """Take a line of the rank; raises `WireError`."""
        number, line, state = frame.count("number"), frame.text("line").encode(), frame.text("state")
        if number <= self._line:
            return
        self._line = number
        try:
            server = self._server = self._server or self._resume(state)
            answer = server.take(line)
        except PmiError as error:
            self._fail(f"protocol violation: {error}")
            return
        if isinstance(answer, Barrier):
            self._tell(DriverEvent(self._spec.guest, MPI_BARRIER, time.monotonic_ns(), answer.detail()))
        else:
            self._reply(answer or "")

    def pass_barrier(self, session: str, number: int, keys: Iterable[RankKeys], *, last: bool) -> None:
        """See `PmiServer.pass_barrier`; a rank without a message on this node so far will report its barrier."""
        answer = None if self._server is None else self._server.pass_barrier(session, number, keys, last=last)
        if answer is not None:
            self._reply(answer)

    def close(self) -> None:
        """Stop answering: the guest has ended, or has left this node with its unanswered line."""
        if self._answering is not None:
            self._answering.cancel()
            self._answering = None

    def _resume(self, state: str) -> PmiServer:
        found = _STATE.fullmatch(state)
        if found is None:
            raise PmiError(f"the state of its rank is {state!r}: expected a session and a count of barriers")
        place = self._spec.program
        return PmiServer(place.rank, place.ranks, found[1], int(found[2]))

    def _state(self) -> str:
        return "" if self._server is None else f"{self._server.session}.{self._server.barriers}"

    def _reply(self, text: str) -> None:
        self.close()
        fields = [("number", self._line), ("state", self._state()), ("text", text)]
        self._answering = asyncio.get_running_loop().create_task(
            self._deliver(fields), name=f"answer to the rank of {self._spec.guest}"
        )

    async def _deliver(self, fields: Sequence[tuple[str, object]]) -> None:
        while True:
            try:
                await self._order("pmi", fields)
            except RefusedError as error:
                self._fail(str(error))
            except DriverError:
                await asyncio.sleep(AGAIN_AFTER_S)
                continue
            return
