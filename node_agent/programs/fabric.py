"""MPI messages of a rank, with waits that sleep: MPI's own wait functions poll at full speed and burn CPU time."""

from __future__ import annotations

import os
import socket
from typing import Any, Protocol

import mpi4py

from node_agent.programs.naps import Naps

mpi4py.rc.thread_level = "funneled"
mpi4py.rc.finalize = False  # collective: the program calls it when all ranks have reached their end


def _call_manager() -> socket.socket | None:
    """Connect to the process manager of this rank, which is its agent, and pass the descriptor to MPI."""
    path = os.environ.get("DFRS_PMI")
    if path is None:
        return None
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    manager.connect(path)
    os.environ["PMI_FD"] = str(manager.fileno())
    return manager


_manager = _call_manager()  # kept open: MPI uses its descriptor until the end

from mpi4py import MPI  # noqa: E402  # initialises MPI with the settings above

from node_agent.programs.task import Task, TaskError  # noqa: E402  # after MPI, as above
from node_agent.programs.words import Words  # noqa: E402  # after MPI, as above

_TAGS = 32767  # the upper bound of tags that every MPI supports


class Idle(Protocol):
    """What a rank does between two polls for messages."""

    def longest_s(self) -> float:
        """Obey the orders that have come; return how long the next sleep may be, in seconds."""

    def sleep(self, length_s: float) -> None:
        """Sleep at most so long; an order ends the sleep."""


class Fabric:
    """The ranks of a job; every call returns at once except `wait`."""

    def __init__(self, task: Task) -> None:
        self._comm: Any = MPI.COMM_WORLD
        if (self._comm.rank, self._comm.size) != (task.rank, task.ranks):
            raise TaskError(
                f"rank {task.rank} of {task.ranks} was placed as rank {self._comm.rank} of {self._comm.size}"
            )
        self._end: Any = None
        self._waited_s: dict[int, float] = {}  # in the last wait, by place of the iteration

    def send(self, words: Words, length: int, rank: int, iteration: int) -> Any:
        """Begin to send the first `length` bytes; return the request."""
        return self._comm.Isend([words.view("u1")[:length], MPI.BYTE], rank, iteration % _TAGS)

    def receive(self, words: Words, length: int, rank: int, iteration: int) -> Any:
        """Begin to receive `length` bytes; return the request."""
        return self._comm.Irecv([words.view("u1")[:length], MPI.BYTE], rank, iteration % _TAGS)

    def wait(self, requests: list[Any], idle: Idle, place: int = 0) -> None:
        """Return when all requests are complete; `place` numbers the waits of an iteration."""
        naps = Naps(self._waited_s.get(place, 0.0))
        while not MPI.Request.Testall(requests):
            idle.sleep(naps.next_s(idle.longest_s()))  # MPI would wait busily and use up the CPU cap
        self._waited_s[place] = naps.waited_s()

    def progress(self) -> None:
        """Let MPI make progress with messages that were sent before."""
        self._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)

    def all_ended(self) -> bool:
        """Enter a barrier at the end of this rank, once, without blocking; return whether all ranks have entered it."""
        if self._end is None:
            self._end = self._comm.Ibarrier()
        return bool(self._end.Test())

    def finalize(self) -> None:
        """Finalise MPI; quick once all ranks have reached their end."""
        MPI.Finalize()
