"""Record on disk of an agent's processes, so that the next agent or a cleanup can end those that outlive it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from node_agent.programs.segments import is_segment, remove_segments
from testbed.host.process_identity import boot_id, start_ticks
from testbed.host.whole_files import write_whole

_GONE_WITHIN_S = 2.0
RECORDS = "processes.json"


@dataclass(frozen=True, slots=True)
class Left:
    """Recorded leftovers of an earlier agent that still exist: start in clock ticks by process id, and files."""

    started: dict[int, int]
    segments: tuple[Path, ...]

    def words(self) -> list[str]:
        """Describe each."""
        return [*(f"process {pid}" for pid in self.started), *(f"shared memory {path}" for path in self.segments)]


class ProcessRecords:
    """The file; a process is identified by its id, its start and the boot of the machine, as ids are reused.

    Beside processes it has the shared memory of ranks, which outlives those that are killed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._boot = boot_id()
        self._started: dict[int, int] = {}
        self._segments: set[Path] = set()

    def add(self, pid: int) -> None:
        """Record a process."""
        started = start_ticks(pid)
        if started is not None:
            self._started[pid] = started
            self._write()

    def discard(self, *pids: int) -> None:
        """Remove ended processes from the record."""
        for pid in pids:
            self._started.pop(pid, None)
        self._write()

    def share(self, segments: Iterable[Path]) -> None:
        """Record shared memory."""
        if fresh := set(segments) - self._segments:
            self._segments |= fresh
            self._write()

    def unshare(self, segments: Iterable[Path]) -> None:
        """Remove deleted shared memory from the record."""
        self._segments -= set(segments)

    def remove(self) -> None:
        """Delete the file."""
        self._path.unlink(missing_ok=True)

    def left(self, kept: Collection[int] = ()) -> Left:
        """Return the recorded processes and files of an earlier agent that still exist, but those `kept`.

        If processes are kept the files may be theirs.
        """
        try:
            earlier = json.loads(self._path.read_text(encoding="utf-8"))
            started = {int(pid): int(ticks) for pid, ticks in earlier["started"].items()}
            segments = [Path(str(name)) for name in earlier.get("segments", ())]
            boot = earlier["boot"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return Left({}, ())
        if boot != self._boot:
            return Left({}, ())
        return Left(
            {pid: ticks for pid, ticks in started.items() if pid not in kept and start_ticks(pid) == ticks},
            tuple(path for path in segments if not kept and is_segment(path) and path.exists()),
        )

    def kill_left(self, kept: Collection[int] = ()) -> Left:
        """Kill and remove all leftovers but those `kept`, then the file; return them. May wait for 2 s per process.

        A process that ends because another one of them is killed, as a program without its keeper, is returned too.
        """
        left = self.left(kept)
        for pid, ticks in left.started.items():
            _kill(pid, ticks)
        remove_segments(left.segments)
        self.remove()
        return left

    def _write(self) -> None:
        told = {"boot": self._boot, "started": self._started, "segments": sorted(map(str, self._segments))}
        write_whole(self._path, json.dumps(told), durable=False)


def recorded(path: Path) -> list[int]:
    """Return the ids of all processes that an earlier agent has recorded, whether they exist or not."""
    try:
        return [int(pid) for pid in json.loads(path.read_text(encoding="utf-8"))["started"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _kill(pid: int, ticks: int) -> None:
    """Kill the process with that id and start, if it still exists, and wait for its end."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if start_ticks(pid) != ticks:  # checked after opening: from here on it can be no other
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        select.select([pidfd], [], [], _GONE_WITHIN_S)
    finally:
        os.close(pidfd)
