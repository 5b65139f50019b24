"""Exit statuses of the processes that an agent started in a guest; reports of other processes are dropped."""

from __future__ import annotations

import asyncio

_MOST_EARLY = 16


class Exits:
    """Statuses by process id.

    A process may end before the answer with its id is read. So while a process is being started, the newest few exits
    of unknown processes are kept, and no others.
    """

    def __init__(self) -> None:
        self._known: dict[int, asyncio.Future[int]] = {}
        self._early: dict[int, int] = {}
        self._starting = False

    def __len__(self) -> int:
        """The number of statuses kept."""
        return len(self._known) + len(self._early)

    def starts(self) -> None:
        """A process is being started."""
        self._starting = True

    def started(self, pid: int) -> None:
        """Take the id of the process that was being started."""
        future = self._known.setdefault(pid, asyncio.get_running_loop().create_future())
        if pid in self._early and not future.done():
            future.set_result(self._early[pid])
        self._starting = False
        self._early.clear()

    def ended(self, pid: int, status: int) -> None:
        """Take the guest's report of an ended process."""
        future = self._known.get(pid)
        if future is not None and not future.done():
            future.set_result(status)
        elif self._starting and future is None:
            self._early[pid] = status
            if len(self._early) > _MOST_EARLY:
                del self._early[next(iter(self._early))]

    async def of(self, pid: int) -> int:
        """Wait for a process that was `started` to end, and return its status."""
        return await asyncio.shield(self._known[pid])
