"""Enforces the fences of a node's guests while its agent lives, and keeps fences and generations in its state folder.

The process that enforces fences while the agent is dead, stopped or stuck reads the file of fences. So does the next
agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from node_agent.drivers.protocol import Driver, DriverEvent, EnforcesFences
from node_agent.fences import FENCES_FILE, LOOK_EVERY_S, Fences, clock_identity
from node_agent.generations import Generations
from node_agent.guest_guard import GuestGuard, encode_generations, load_generations
from testbed.bus.messages import Adopt, AnyAction, Start
from testbed.errors import FailureCode
from testbed.host.whole_files import write_whole

GENERATIONS_FILE = "generations.json"
_WHY = "its node did not hear from the controller until its fence"
_log = logging.getLogger(__name__)
T = TypeVar("T")


class Guests(Protocol):
    """The guests of the agent."""

    def held(self) -> set[str]:
        """Return the names of the guests that hold memory."""

    def lost(self, guest: str, why: str, code: FailureCode) -> None:
        """Report that a guest was destroyed."""


class Fencing:
    """The guard of an agent's guests.

    `destroy(guest)` destroys a guest once no command for it is in progress, and has called `gone` if the guest is gone.

    `durable` is false for simulated guests, whose files are written in the event loop, as threads do not work with
    virtual time.
    """

    def __init__(
        self, state_dir: Path, now_s: Callable[[], float], destroy: Callable[[str], Awaitable[object]], guests: Guests,
        driver: Driver, *, durable: bool,
    ) -> None:  # fmt: skip
        self._enforcing = driver if isinstance(driver, EnforcesFences) else None
        self._state_dir = state_dir
        self._now_s = now_s
        self._destroy = destroy
        self._guests = guests
        self._durable = durable
        self.clock = clock_identity()
        self._guard = GuestGuard(Generations(), Fences(self.clock), self._now_ns)
        self._doing: dict[asyncio.Task[Any], str] = {}
        self._ending: set[str] = set()
        self._writing = asyncio.Lock()
        self._news = asyncio.Event()
        self._lifted = False  # since the file was written

    def reading(self) -> dict[str, object]:
        """Return a reading of the clock of the fences, for a reply."""
        return {"clock": self.clock, "mono_ns": self._now_ns()}

    def _now_ns(self) -> int:
        return int(self._now_s() * 1e9)

    def begin(self) -> None:
        """Read the tables that an earlier agent of this node has written."""
        generations = _read(self._state_dir / GENERATIONS_FILE, load_generations) or Generations()
        fences = _read(self._state_dir / FENCES_FILE, lambda content: Fences.load(content, self.clock))
        self._guard = GuestGuard(generations, fences or Fences(self.clock), self._now_ns)

    async def admit(self, action: AnyAction) -> None:
        """Check a command before it is carried out; raises `DriverError` for one that is for an earlier life, or late.

        The changed tables are on the disk when this returns.
        """
        changes = self._guard.admit(action)
        if changes.generations:
            await self._write(GENERATIONS_FILE, lambda: encode_generations(self._guard.generations))
        if changes.fences:
            self._news.set()
            await self._write(FENCES_FILE, self._guard.fences.encode)
            if self._enforcing is not None:
                await self._enforcing.enforce_fences()
        if changes.fences and isinstance(action, Start | Adopt):
            self._guard.check(action.spec.guest, action.fence)  # again, as writing may have taken long

    async def _write(self, name: str, encode: Callable[[], bytes]) -> None:
        async with self._writing:  # so that the last state is written last
            if self._durable:
                await asyncio.to_thread(write_whole, self._state_dir / name, encode())
            else:
                write_whole(self._state_dir / name, encode(), durable=False)

    @contextlib.contextmanager
    def doing(self, guest: str | None) -> Iterator[None]:
        """Inside the block this task carries out a command for a guest: it is cancelled if the guest's fence falls."""
        task = asyncio.current_task()
        if guest is None or task is None:
            yield
            return
        self._doing[task] = guest
        try:
            yield
        finally:
            del self._doing[task]

    def gone(self, guest: str) -> None:
        """Lift the fence of a guest that is gone."""
        if self._guard.gone(guest):
            self._lift()

    def clear(self) -> None:
        """Lift all fences: all guests are gone, and none is expected."""
        if self._guard.fences.guests():
            self._guard.fences.clear()
            self._lift()

    def _lift(self) -> None:
        self._lifted = True
        self._news.set()

    def judged(self, driver_event: DriverEvent) -> DriverEvent:
        """Return an event of the driver; a guest that failed after its fence has fallen was destroyed (`fenced`)."""
        if driver_event.event != "failed" or driver_event.guest not in self._guard.due():
            return driver_event
        return replace(driver_event, detail={**driver_event.detail, "reason": _WHY, "code": FailureCode.FENCED.value})

    async def run(self) -> None:
        """Destroy guests when their fences fall, until cancelled."""
        while True:
            self._news.clear()
            await asyncio.gather(*map(self._end, self._guard.due()))
            await self._write_lifted()
            due_ns = self._guard.fences.next_ns()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due_ns is None else self._until_s(due_ns)):
                    await self._news.wait()

    async def _write_lifted(self) -> None:
        """Write the file without the lifted fences, so that the enforcing process does not search for these guests."""
        if self._lifted:
            self._lifted = False
            try:
                await self._write(FENCES_FILE, self._guard.fences.encode)
            except OSError as error:  # old fences of guests that are gone do no harm
                _log.warning("%s: %s", self._state_dir / FENCES_FILE, error)

    def _until_s(self, due_ns: int) -> float:
        left_s = due_ns / 1e9 - self._now_s()
        return left_s if left_s > 0 else LOOK_EVERY_S  # a guest that may still arrive, or that could not be destroyed

    async def _end(self, guest: str) -> None:
        for task, name in list(self._doing.items()):
            if name == guest:
                task.cancel()
        if guest in self._guests.held():
            _log.warning("guest %s: %s: destroying it", guest, _WHY)
            self._ending.add(guest)
        await self._destroy(guest)
        if guest in self._ending and guest not in self._guard.fences:  # else it was not destroyed, and is due again
            self._ending.discard(guest)
            self._guests.lost(guest, _WHY, FailureCode.FENCED)


def _read(path: Path, load: Callable[[bytes], T]) -> T | None:
    try:
        return load(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.warning("%s: %s", path, error)
        return None
