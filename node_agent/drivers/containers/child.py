"""A container as the process driver handles its processes: a process id, an exit code and a way to kill it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Callable

from node_agent.drivers.containers.engine import Engine
from node_agent.drivers.procs.keeping import Kept
from node_agent.drivers.protocol import DriverError

_KILLED = 128  # exit codes above it are those of signals, as shells report them


class ContainerChild:
    """The command of a container; `exited` gives its exit code, negative for a signal, once the container has ended."""

    def __init__(
        self, engine: Engine, kept: Kept, pid: int, on_output: Callable[[bytes], None], program: int | None = None
    ) -> None:
        """`program` is a descriptor of its command from an earlier agent; the caller closes it.

        The container has the name of the guest's life at the keeper. It is killed if the keeper ends.
        """
        loop = asyncio.get_running_loop()
        self.container = kept.key
        self.pid = pid
        self.exited: asyncio.Future[int] = loop.create_future()
        self._engine = engine
        self._on_output = on_output
        self._pidfd: int | None = None
        self._ending: asyncio.Task[None] | None = None
        try:
            self._pidfd = os.pidfd_open(pid) if program is None else os.dup(program)
        except OSError:  # it has ended already
            self._end()
            return
        if program is None:
            kept.store("program", self._pidfd)  # before the program connects, so that the keeper can always kill it
        kept.on_lost = self.kill
        if self.ended:
            self._on_exit()
        else:
            loop.add_reader(self._pidfd, self._on_exit)

    @property
    def ended(self) -> bool:
        """Whether its command has ended; `exited` is done once the engine has reported the exit code."""
        return self._pidfd is None or _is_readable(self._pidfd)

    def kill(self) -> None:
        """Kill the command; other processes of the container end with it."""
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _on_exit(self) -> None:
        if self._pidfd is not None:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        self._end()

    def _end(self) -> None:
        self._ending = asyncio.get_running_loop().create_task(self._finish(), name="container ended")

    async def _finish(self) -> None:
        code = -signal.SIGKILL
        try:
            code, printed = await self._engine.ended(self.container)
            self._on_output(printed)
        except DriverError as error:
            self._on_output(f"{error}\n".encode())
        self.exited.set_result(_KILLED - code if code > _KILLED else code)


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
