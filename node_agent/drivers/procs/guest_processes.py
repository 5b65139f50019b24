"""The processes of one guest and the shared memory of its rank, recorded on disk so that none outlives the guest."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

from node_agent.drivers.procs.child import Running
from node_agent.drivers.procs.records import ProcessRecords
from node_agent.programs.segments import is_segment, remove_segments


class GuestProcesses:
    """`children` were started for the guest; `program`, which may be none of them, is a descriptor of its program.

    `segments` are the files of the shared memory. `on_exit` is called at the end of each child.
    """

    def __init__(self, records: ProcessRecords, on_exit: Callable[[], None]) -> None:
        self.children: list[Running] = []
        self.program: int | None = None
        self.segments: set[Path] = set()
        self._records = records
        self._on_exit = on_exit

    def take(self, child: Running) -> None:
        """Take a process that was started for the guest."""
        self.children.append(child)
        self._records.add(child.pid)
        child.exited.add_done_callback(lambda _exited: self._on_exit())

    def open_program(self, pid: int) -> int | None:
        """Open the process of the program; return its descriptor, None if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self.program = os.pidfd_open(pid)
        return self.program

    def record(self, pid: int) -> None:
        """Record the process of the program on disk."""
        self._records.add(pid)

    def share(self, segments: Iterable[Path]) -> None:
        """Note and record shared memory of the rank; other files are ignored."""
        self.segments |= {path for path in segments if is_segment(path)}
        self._records.share(self.segments)

    def kill(self) -> None:
        """Kill the program and all children."""
        if self.program is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.program, signal.SIGKILL)
        for child in self.children:
            child.kill()

    def live_pids(self) -> list[int]:
        """Return the process ids of the children that have not ended."""
        return [child.pid for child in self.children if not child.exited.done()]

    def codes(self) -> list[int]:
        """Return the exit codes of the children, all of which have ended."""
        return [child.exited.result() for child in self.children]

    def clear(self, pid: int | None) -> None:
        """Remove the shared memory, and the records of all processes, `pid` being the program's."""
        remove_segments(self.segments)
        self._records.unshare(self.segments)
        if self.program is not None:
            os.close(self.program)
            self.program = None
        self._records.discard(*(child.pid for child in self.children), *(() if pid is None else (pid,)))
