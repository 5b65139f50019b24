"""The agent's end of the process that destroys its virtual machines at their fences (`fence_watch`)."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

from node_agent.drivers.protocol import DriverError
from node_agent.drivers.virt import fence_watch
from node_agent.drivers.virt.fence_watch import AGENT_LOCK, WATCH_LOCK, hold, holder

_WITHIN_S = 10.0


class FenceWatching:
    """The process of a state folder: started with the first fence, and found by later agents."""

    def __init__(self, state_dir: Path, uri: str) -> None:
        self._folder = state_dir.absolute()
        self._uri = uri
        self._virsh = None if _in_this_process(uri) else shutil.which("virsh")
        self._lock = -1
        self._starting = threading.Lock()

    @property
    def able(self) -> bool:
        """Whether it can destroy guests: by virsh, of a hypervisor that other processes reach."""
        return self._virsh is not None

    def begin(self) -> None:
        """Hold the lock by which the process sees that an agent lives, until `close`."""
        if self.able:
            with contextlib.suppress(OSError):
                self._lock = hold(self._folder / AGENT_LOCK)

    def ensure(self) -> None:
        """Start the process unless it runs; raises `DriverError`. Without virsh nothing is done."""
        if self._virsh is None:
            return
        try:
            with self._starting:
                if not holder(self._folder / WATCH_LOCK):
                    self._start(self._virsh)
        except OSError as error:
            raise DriverError(f"nothing enforces fences without this agent: {error}") from error

    def _start(self, virsh: str) -> None:
        argv = [sys.executable, "-I", "-S", fence_watch.__file__, str(self._folder), self._uri, virsh]
        process = subprocess.Popen(  # noqa: S603  # argument lists of our own making, no shell
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, cwd="/",
        )  # fmt: skip
        self._wait_locked(process)

    def _wait_locked(self, process: subprocess.Popen[bytes]) -> None:
        pidfd = os.pidfd_open(process.pid)
        try:
            while not holder(self._folder / WATCH_LOCK):
                if select.select([pidfd], [], [], 0.01)[0] and not holder(self._folder / WATCH_LOCK):
                    raise DriverError(f"nothing enforces fences without this agent: {fence_watch.__file__} has ended")
        finally:
            os.close(pidfd)
            if process.poll() is None:
                process.returncode = 0  # it outlives this object, whose end must not warn of that

    def close(self, *, end: bool) -> None:
        """Release the agent's lock; with `end` also end the process, which else runs until no fence is left."""
        if end:
            self.end()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        if end and self.able:
            (self._folder / AGENT_LOCK).unlink(missing_ok=True)

    def end(self, *, dry_run: bool = False) -> list[str]:
        """End the process, or only name it; return a description if it runs."""
        pid = holder(self._folder / WATCH_LOCK)
        if pid and not dry_run:
            with contextlib.suppress(OSError):  # it has ended just now
                pidfd = os.pidfd_open(pid)
                signal.pidfd_send_signal(pidfd, signal.SIGTERM)
                if not select.select([pidfd], [], [], _WITHIN_S)[0]:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os.close(pidfd)
            with contextlib.suppress(ChildProcessError):  # it may be an earlier agent's child
                os.waitpid(pid, os.WNOHANG)
        return [f"process {pid}, which enforces fences"] if pid else []


def _in_this_process(uri: str) -> bool:
    """Whether a hypervisor is part of the process that connects to it, as libvirt's embedded driver is."""
    return "/embed" in uri or uri.startswith("test:")
