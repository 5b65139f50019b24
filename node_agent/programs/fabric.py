"""What a rank needs of MPI, without burning CPU time while it waits: MPI's own waiting would poll at full speed."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any

import mpi4py

from node_agent.programs.naps import Naps

mpi4py.rc.thread_level = "funneled"
mpi4py.rc.finalize = False  # collective: the program does it when all ranks have come to their end


def _call_manager() -> socket.socket | None:
    """Connect to the process manager of this rank, which is its agent, and tell MPI the descriptor."""
    path = os.environ.get("DFRS_PMI")
    if path is None:
        return None
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    manager.connect(path)
    os.environ["PMI_FD"] = str(manager.fileno())
    return manager


_manager = _call_manager()  # kept: MPI speaks by its descriptor until its end

from mpi4py import MPI  # noqa: E402  # initialises MPI with the settings above

from node_agent.programs.task import Task, TaskError  # noqa: E402  # after MPI, as above
from node_agent.programs.words import Words  # noqa: E402  # after MPI, as above

_TAGS = 32767  # the least upper bound of tags that MPI promises


class Fabric:
    """The ranks of a job; every call returns at once except `wait`."""

    def __init__(self, task: Task) -> None:
        self._comm: Any = MPI.COMM_WORLD
        if (self._comm.rank, self._comm.size) != (task.rank, task.ranks):
            raise TaskError(
                f"rank {task.rank} of {task.ranks} was placed as rank {self._comm.rank} of {self._comm.size}"
            )
        self._end: Any = None

    def send(self, words: Words, length: int, rank: int, iteration: int) -> Any:
        """Begin to send the first `length` bytes; return the request."""
        return self._comm.Isend([words.view("u1")[:length], MPI.BYTE], rank, iteration % _TAGS)

    def receive(self, words: Words, length: int, rank: int, iteration: int) -> Any:
        """Begin to receive `length` bytes; return the request."""
        return self._comm.Irecv([words.view("u1")[:length], MPI.BYTE], rank, iteration % _TAGS)

    def wait(self, requests: list[Any], meanwhile: Callable[[], float]) -> None:
        """Return when all requests are complete; `meanwhile` is called between, and tells how long a sleep may be."""
        naps = Naps()
        while not MPI.Request.Testall(requests):
            time.sleep(naps.next_s(meanwhile()))  # MPI would wait busily and use up the CPU cap

    def progress(self) -> None:
        """Let MPI carry on with what was sent before."""
        self._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)

    def all_ended(self) -> bool:
        """Say that this rank has come to its end, once; return whether all have."""
        if self._end is None:
            self._end = self._comm.Ibarrier()
        return bool(self._end.Test())

    def finalize(self) -> None:
        """Leave MPI; quick once all ranks have come to their end."""
        MPI.Finalize()
