"""Which processes an agent has started, on disk, so that the next agent can end those that outlived this one."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from pathlib import Path

_GONE_WITHIN_S = 2.0


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot, or None if there is none of that id."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class ProcessRecords:
    """The file; a process is known by its id, its start and the boot of the machine, as ids come again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._boot = _boot_id()
        self._started: dict[int, int] = {}

    def add(self, pid: int) -> None:
        """Write a process down."""
        started = start_ticks(pid)
        if started is not None:
            self._started[pid] = started
            self._write()

    def discard(self, *pids: int) -> None:
        """Strike out processes that have ended."""
        for pid in pids:
            self._started.pop(pid, None)
        self._write()

    def remove(self) -> None:
        """Delete the file."""
        self._path.unlink(missing_ok=True)

    def kill_left(self) -> list[int]:
        """Kill what an earlier agent wrote down and what still lives; return the process ids. May wait for 2 s."""
        try:
            earlier = json.loads(self._path.read_text(encoding="utf-8"))
            started = {int(pid): int(ticks) for pid, ticks in earlier["started"].items()}
            boot = earlier["boot"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return []
        killed = [pid for pid, ticks in started.items() if boot == self._boot and _kill(pid, ticks)]
        self.remove()
        return killed

    def _write(self) -> None:
        partial = self._path.with_suffix(".part")
        partial.write_text(json.dumps({"boot": self._boot, "started": self._started}), encoding="utf-8")
        partial.replace(self._path)


def _kill(pid: int, ticks: int) -> bool:
    """Kill the process with that id and start and wait for its end; return whether there was one."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if start_ticks(pid) != ticks:  # checked after opening: from here on it can be no other
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        select.select([pidfd], [], [], _GONE_WITHIN_S)
    finally:
        os.close(pidfd)
    return True
