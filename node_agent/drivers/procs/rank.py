"""The process manager of a guest's rank, which can outlive its agent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from node_agent.drivers.pmi.link import PmiLink
from node_agent.drivers.pmi.server import Barrier, PmiServer
from node_agent.drivers.procs.keeping import Kept
from node_agent.drivers.protocol import DriverEvent
from testbed.bus.messages import MPI_BARRIER, GuestSpec, RankKeys


class GuestRank:
    """Serves the rank of one guest, if it is one. It is the `PmiStore` of a guest that is `kept`.

    `note_answer(took, text)` has the keeper answer a request, together with the guest's record. `on_trouble` is called
    for a message that no rank would send.
    """

    def __init__(
        self, spec: GuestSpec, kept: Kept | None, note_answer: Callable[[int, str], None],
        tell: Callable[[DriverEvent], None], on_trouble: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._spec = spec
        self._kept = kept
        self._note_answer = note_answer
        self._tell = tell
        self._on_trouble = on_trouble
        self._link: PmiLink | None = None
        self._early = b""  # requests that have arrived before `again`

    @property
    def server(self) -> PmiServer | None:
        """The state of the process manager, None before the guest has joined its job."""
        return None if self._link is None else self._link.server

    async def open(self, session: str, path: Path, is_program: Callable[[int], bool]) -> None:
        """Wait for the rank at a socket."""
        program = self._spec.program
        link, _ = self._serve(PmiServer(program.rank, program.ranks, session))
        await link.listen(path, is_program)

    def take_over(self, server: PmiServer) -> None:
        """Take over the state that an earlier agent has noted; all later records of the guest must contain it."""
        _, self._early = self._serve(server)

    def again(self, requests: bytes) -> None:
        """Continue to serve a rank that was taken over, from its unanswered requests on."""
        if self._link is not None:
            self._link.again(requests + self._early)

    def pass_barrier(self, session: str, number: int, keys: Iterable[RankKeys], *, last: bool) -> None:
        """Let the rank pass a barrier; raises `DriverError` for invalid keys."""
        if self._link is not None:
            self._link.pass_barrier(session, number, keys, last=last)

    def close(self) -> None:
        """Hang up and stop listening."""
        if self._link is not None:
            self._link.close()

    def store(self, channel: str, fd: int) -> None:
        """See `PmiStore.store`."""
        if self._kept is not None:
            self._kept.store(channel, fd)

    def answer(self, took: int, text: str) -> None:
        """See `PmiStore.answer`."""
        self._note_answer(took, text)

    def _serve(self, server: PmiServer) -> tuple[PmiLink, bytes]:
        """Return the connection to the rank, and requests that have arrived before."""
        self._link = PmiLink(server, self._at_barrier, self._on_trouble, None if self._kept is None else self)
        return self._link, b"" if self._kept is None else self._kept.serve(self._link.data_received)

    def _at_barrier(self, barrier: Barrier) -> None:
        self._tell(DriverEvent(self._spec.guest, MPI_BARRIER, time.monotonic_ns(), barrier.detail()))
