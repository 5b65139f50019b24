"""A process that the agent started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from node_agent.drivers.procs.log import Log

_CHUNK = 65536


class Running(Protocol):
    """A running part of a guest on this machine; `exited` gives its exit code, negative for a signal."""

    pid: int
    exited: asyncio.Future[int]

    def kill(self) -> None:
        """Kill it with all processes that it started."""


class Child:
    """A process in a session of its own; `exited` gives its exit code, negative for a signal."""

    def __init__(
        self, argv: Sequence[str], env: dict[str, str], folder: Path, on_output: Callable[[bytes], None],
        inherits: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """`inherits` are descriptors that the process gets under the same numbers."""
        self._loop = asyncio.get_running_loop()
        self._on_output = on_output
        self.exited: asyncio.Future[int] = self._loop.create_future()  # wait for it behind a shield
        self._output, output = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._output, False)
        try:
            self._process = subprocess.Popen(  # noqa: S603  # argument lists of our own making, no shell
                argv, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True, pass_fds=inherits,
            )  # fmt: skip
        except BaseException:
            os.close(self._output)
            raise
        finally:
            os.close(output)
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._on_exit)
        self._loop.add_reader(self._output, self._read)

    def kill(self) -> None:
        """Kill it and the processes that it started in its session."""
        if not self.exited.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def _read(self) -> bool:
        """Read printed output; return whether there may be more."""
        try:
            data = os.read(self._output, _CHUNK)
        except BlockingIOError:
            return False
        if data:
            self._on_output(data)
        else:
            self._loop.remove_reader(self._output)
        return bool(data)

    def _on_exit(self) -> None:
        code = self._process.wait()  # returns at once: the descriptor reported the end
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        while self._read():
            pass
        self._loop.remove_reader(self._output)
        os.close(self._output)
        self.exited.set_result(code)


def describe(trouble: str, codes: Sequence[int], log: Log) -> str:
    """Return a text that describes how a guest ended whose processes had these exit codes."""
    endings, said = ", ".join(ending(code) for code in codes), log.tail()
    return (trouble or f"it ended by itself: {endings}") + (f"; it printed: {said}" if said else "")


def ending(code: int) -> str:
    """Return a text that describes how a process ended."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"
