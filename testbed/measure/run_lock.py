"""The lock of a run directory, which allows one controller at a time to drive the run."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from testbed.errors import UserError
from testbed.host.locks import try_lock

FILE = ".controller"
_MOST_BYTES = 200


class RunLock:
    """A lock that is held from its creation until `release` or the end of this process; its file names the holder."""

    def __init__(self, run: Path) -> None:
        """Take the lock; raises `UserError` while another process holds it, and `OSError`."""
        self._path = run / FILE
        self._lock: int | None = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        if not try_lock(self._lock):
            holder = os.read(self._lock, _MOST_BYTES).decode(errors="replace").strip() or "another process"
            os.close(self._lock)
            self._lock = None
            raise UserError(f"{run}: {holder} drives this run: wait for its end, or stop it by `testbed control stop`")
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._lock)
            self._lock = None
