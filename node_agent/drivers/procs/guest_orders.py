"""The orders to a guest's program (to hold, to continue, to save itself, to be saved whole), and its answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from node_agent.drivers.procs.asked import Asked
from node_agent.drivers.procs.guest_cap import GuestCap
from node_agent.drivers.procs.guest_record import GuestRecord, State
from node_agent.drivers.procs.guest_status import GuestStatus
from node_agent.drivers.procs.link import GuestLink
from node_agent.drivers.protocol import DriverError, SaveReport
from node_agent.guests.channel import Message

_BACK_WITHIN_S = 10.0  # for the reconnection of a parked program whose save failed
_log = logging.getLogger(__name__)


class GuestOrders:
    """Gives orders to the program of one guest, at most one at a time, and sets the guest's state by the answers.

    `note` stores the guest's record, `kill` kills the guest's processes, `check_end` checks whether they have ended.
    """

    def __init__(
        self, status: GuestStatus, link: GuestLink, cap: GuestCap, note: Callable[[], None], kill: Callable[[], None],
        check_end: Callable[[], None],
    ) -> None:  # fmt: skip
        self._status = status
        self._link = link
        self._cap = cap
        self._note = note
        self._kill = kill
        self._check_end = check_end
        self._asked = Asked(status.guest)
        self.held_at = 0
        self.order: tuple[int, str] | None = None  # the save: at which iteration, to which file
        self.report: dict[str, Any] | None = None  # of the save, unless the program reports that it continues
        self.waiting = 0  # orders that wait for the end of the save
        self.saving: asyncio.Task[SaveReport] | None = None  # a save that an earlier agent has ordered
        self.parked = False  # `save_whole` has closed its channel, and may be ending its processes
        self.whole = False  # its processes were written as a whole, and are therefore ended

    # --- the result of a save

    @property
    def saved(self) -> bool:
        """Whether the guest ends because it was saved."""
        return self.whole or self.report is not None

    @property
    def unclaimed(self) -> tuple[int, Path, SaveReport] | None:
        """The reported save, if no order waits for it: its iteration, its file, its report."""
        if self.waiting or self.order is None or self.report is None:
            return None
        return self.order[0], Path(self.order[1]), SaveReport(**self.report)

    # --- orders

    async def begin(self) -> None:
        """Wait until the program has its memory, set the cap, and let it work."""
        if self._status.state is State.WAITING:
            self._status.state = State.STARTING
        await self._wait_for("ready")
        await self.release()

    async def hold(self) -> int:
        """Lift the cap and stop at the next consistent point; return it."""
        async with self._status.end_told():
            await self._give_up_save()
            self._status.must_be(State.RUNNING, State.HELD)
            self._status.state = State.HELD
            await self._cap.set(None)
            self._note()
            await self._ask("hold", "held")
            return self.held_at

    async def release(self) -> None:
        """Set the cap and continue."""
        await self._give_up_save()
        self._status.must_be(State.STARTING, State.RUNNING, State.HELD)
        await self._cap.apply()
        self._status.state = State.RUNNING
        self._note()
        await self._ask("release", "released")

    async def save(self, at: int | None, image: Path) -> SaveReport:
        """Save the guest at iteration `at`, after which it ends; after a failure it is still held.

        If an earlier agent has ordered a save to that image, its result is returned.
        """
        self.waiting += 1
        try:
            if self.saving is not None and self.order is not None and self.order[1] == str(image):
                return await asyncio.shield(self.saving)
            self._status.must_be(State.HELD)
            self._status.state = State.SAVING
            self.order, self.report = (self.held_at if at is None else at, str(image)), None
            self._note()
            return await self._save(*self.order)
        finally:
            self.waiting -= 1

    async def save_whole(self, write: Callable[[], Awaitable[SaveReport]]) -> SaveReport:
        """Have `write` write the guest's processes, then end them; after a failure the guest is still held."""
        self._status.must_be(State.HELD)
        await self._check_connected()
        self._status.state = State.SAVING
        self.parked = True
        self._note()
        try:
            await self._link.park()
            report = await write()
            self.whole = True
        finally:
            self.parked = False
            if not self.whole:  # else the record stays that of a parked guest, which the next agent destroys
                await asyncio.shield(self._call_back())
        self._kill()
        await asyncio.shield(self._status.gone)
        return report

    # --- orders of an earlier agent

    def take_over(self, record: GuestRecord) -> None:
        """Continue from what an earlier agent has noted."""
        self.held_at, self.order, self.report = record.held_at, record.order, record.report

    def save_again(self) -> None:
        """Repeat the save that an earlier agent has ordered, if any; that order may not have been sent."""
        if self._status.state is State.SAVING and self.order is not None:
            self.saving = asyncio.get_running_loop().create_task(self._save(*self.order), name="save, again")
            self.saving.add_done_callback(self._log_failure)

    # --- answers

    def take(self, message: Message) -> None:
        """Take a message that may answer an order; it decides whether the guest is saved or continues."""
        if message.kind in {"held", "released", "saved", "save_failed"}:
            self._decide(message)
            self._note()
        self._asked.take(message)

    def fail(self, reason: str) -> None:
        """Fail the order that waits: there will be no answer."""
        self._asked.fail(reason)

    def _decide(self, answer: Message) -> None:
        if answer.kind == "saved":
            self.report = answer.fields if self.order is not None else None
        elif answer.kind == "save_failed" and self._status.state is State.SAVING:
            self._status.state = State.HELD
        if answer.kind == "held":
            self.held_at = answer.fields["at"]
        if answer.kind != "saved" and self._status.state is not State.SAVING:  # else an earlier agent ordered the hold
            self.order = self.report = None

    async def _ask(self, kind: str, *answers: str, **fields: object) -> Message:
        await self._check_connected()
        self._link.send(kind, **fields)
        return await self._wait_for(*answers)

    async def _check_connected(self) -> None:
        """If the program hung up, wait until its processes have ended, and raise the reason of the guest's end."""
        if not self._link.open:
            await asyncio.shield(self._status.gone)
            raise self._status.late()

    async def _wait_for(self, *answers: str) -> Message:
        if self._status.state is State.ENDED:
            raise self._status.late()
        return await self._asked.wait(*answers)

    # --- saves

    async def _save(self, at: int, path: str) -> SaveReport:
        guest = self._status.guest
        try:
            if self.report is None:
                message = await self._ask("save", "saved", "save_failed", at=at, path=path)
                if message.kind == "save_failed":
                    raise DriverError(f"guest {guest}: {message.fields['error']}")
                self.report = message.fields
            await asyncio.shield(self._status.gone)
            if self._status.trouble:
                raise DriverError(f"guest {guest}: {self._status.trouble}")
            return SaveReport(**self.report)
        finally:
            if self._status.state is State.SAVING:
                self._status.state = State.HELD
                self._note()

    def _log_failure(self, saving: asyncio.Task[SaveReport]) -> None:
        if not saving.cancelled() and (error := saving.exception()) is not None:
            _log.warning("guest %s, being saved when its last agent ended: %s", self._status.guest, error)

    async def _give_up_save(self) -> None:
        """Cancel the save that an earlier agent has ordered; no caller awaits it any more."""
        if self.saving is not None and self._status.state is State.SAVING:
            self.saving.cancel()
            await asyncio.wait((self.saving,))
            self.saving = None

    async def _call_back(self) -> None:
        """Have a parked program reconnect; kill it if it does not."""
        self._check_end()
        if self._status.state is State.ENDED:
            return
        await self._link.listen()
        joined, gone = asyncio.ensure_future(self._link.joined.wait()), self._status.gone
        await asyncio.wait((joined, gone), timeout=_BACK_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
        joined.cancel()
        if self._link.open:
            self._status.state = State.HELD
            self._note()
        elif not gone.done():
            self._status.blame(f"it did not reconnect within {_BACK_WITHIN_S:g} s")
            self._kill()
