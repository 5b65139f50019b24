"""One guest: a program, the processes around it, its control channel, its cap and its share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from node_agent.drivers.caps.guest_share import GuestShare
from node_agent.drivers.caps.protocol import Caps
from node_agent.drivers.native import RankProgress
from node_agent.drivers.procs.asked import Asked
from node_agent.drivers.procs.child import Child, Running, describe
from node_agent.drivers.procs.enclosure import Enclosure
from node_agent.drivers.procs.guest_cap import GuestCap
from node_agent.drivers.procs.guest_record import GuestRecord, State
from node_agent.drivers.procs.keeping import Kept, Left
from node_agent.drivers.procs.link import GuestLink
from node_agent.drivers.procs.log import Log
from node_agent.drivers.procs.progress import GuestProgress
from node_agent.drivers.procs.rank import GuestRank
from node_agent.drivers.procs.records import ProcessRecords
from node_agent.drivers.protocol import DriverError, DriverEvent, Meter, SaveReport, SuspectError
from node_agent.guests.channel import VERSION, ChannelError, Message
from node_agent.programs.segments import abandoned_segments, is_segment, remove_segments
from testbed.bus.messages import GuestSpec
from testbed.bus.telemetry import GuestSample

_GRACE_S = 1.0  # between the end of a program's channel and the end of its processes
_MOST_SEGMENTS = 64  # files of shared memory that MPI makes for one rank: there are a few
_BACK_WITHIN_S = 10.0  # for the reconnection of a parked program whose save failed
_log = logging.getLogger(__name__)


class ProcessGuest:
    """A guest from its creation to its end.

    A guest is uncapped while it is created, held or saved: this is the machine's work, and a checkpoint must not be
    slower under a lower cap. The cap is set before the program is ordered to work or to continue. `gone` is done when
    nothing of the guest is left; `forget` is called just before, so that its name is free once the end is reported.
    """

    def __init__(
        self, spec: GuestSpec, cap_cores: float, image: Path | None, socket: Path, log: Path, caps: Caps,
        records: ProcessRecords, tell: Callable[[DriverEvent], None], forget: Callable[[ProcessGuest], None],
        enclosure: Enclosure | None = None, kept: Kept | None = None, share: GuestShare | None = None,
    ) -> None:  # fmt: skip
        """`kept` is its life at the keeper, by which it outlives this agent."""
        self.spec = spec
        self.kept = kept
        self._enclosure = enclosure
        self.state = State.WAITING
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.log = Log(log)
        self._folder = log.parent
        self._log_path = log
        self._image = image
        self._cap = GuestCap(spec, cap_cores, caps, tell, lambda: self.state is State.RUNNING)
        self._share = share
        self._records = records
        self._tell = tell
        self._forget = forget
        self._link = GuestLink(socket, self._heard, self._hung_up, self._joined)
        self.rank = GuestRank(spec, kept, self.note, tell, self._spoke_nonsense)
        self._children: list[Running] = []
        self._inside = asyncio.Event()  # not set while it is being started in its enclosure
        self._inside.set()
        self._program: int | None = None  # a descriptor of the program's process
        self._asked = Asked(spec.guest)
        self._progress = GuestProgress()
        self._done: tuple[int, dict[str, Any]] | None = None
        self._held_at = 0
        self._made = False
        self._order: tuple[int, str] | None = None  # the save: at which iteration, to which file
        self._report: dict[str, Any] | None = None  # of the save, unless the program reports that it continues
        self._waiting = 0  # orders that wait for the end of the save
        self.saving: asyncio.Task[SaveReport] | None = None  # a save that an earlier agent has ordered
        self._parked = False  # `save_whole` has closed its channel, and may be ending its processes
        self._whole = False  # its processes were written as a whole, and are therefore ended
        self._stopping = False
        self._trouble = ""
        self._segments: set[Path] = set()
        self._made_unix_s = time.time()
        self._greeting: asyncio.Task[None] | None = None
        self._finishing: asyncio.Task[None] | None = None

    # --- its processes

    @property
    def control(self) -> Path:
        """The socket of its control channel."""
        return self._link.path

    async def listen(self) -> None:
        """Open the control channel."""
        await self._link.listen()

    async def open_mpi(self, session: str) -> Path:
        """Get ready to serve the guest's rank as its process manager; return the socket that it connects to."""
        if self.rank.server is not None:
            raise SuspectError(f"guest {self.spec.guest} has joined its MPI job already: expected one join")
        self._must_be(State.WAITING)
        path = self._link.path.with_suffix(".pmi")
        await self.rank.open(session, path, lambda pid: pid == self._link.pid)
        return path

    async def enter(self, argv: list[str], env: dict[str, str]) -> None:
        """Start the guest's program in the guest's enclosure, or directly on the machine if it has none."""
        self._inside.clear()
        try:
            self._take(await self._start(argv, env))
        finally:
            self._inside.set()
            if self._stopping:  # stopped while it was being started
                self._kill()

    async def _start(self, argv: list[str], env: dict[str, str]) -> Running:
        if self.kept is None:
            return Child(argv, env, self._folder, self.log.write)
        self.kept.check()
        self.note()
        if self._enclosure is not None:
            return await self._enclosure(self.kept, self.spec, self._image, argv, env, self._folder, self.log.write)
        await self.kept.spawn(argv, env, self._folder, self._log_path)
        return self.kept

    def _take(self, child: Running) -> None:
        self._children.append(child)
        self._records.add(child.pid)
        child.exited.add_done_callback(lambda _exited: self._check_end())

    def _note_segments(self, segments: Iterable[Path]) -> None:
        self._segments |= {path for path in segments if is_segment(path)}
        self._records.share(self._segments)

    def note(self, took: int = 0, answer: str | None = None) -> None:
        """Store the guest's record at the keeper, and have it answer `took` bytes of its rank's requests."""
        if self.kept is not None:
            self.kept.note(self.record(), took, answer, freeze=self._cap.needs_agent, files=map(str, self._segments))

    def record(self) -> str:
        """Return the guest's record for the next agent."""
        told = self._progress.told
        return GuestRecord(
            self._spec_now(), self._cap.wanted_cores, self.state, self._made, str(self._log_path), self._made_unix_s,
            None if self._image is None else str(self._image), self._link.pid, self._held_at, self._order, self._report,
            tuple(map(str, self._segments)), self._done, None if told is None else (told.units, told.mono_ns),
            self._progress.steps, self._trouble, self.rank.server, self._parked,
        ).encode()  # fmt: skip

    def _spec_now(self) -> GuestSpec:
        """Return its specification with its present share."""
        share = self._share
        return self.spec if share is None else msgspec.structs.replace(self.spec, share_cores=share.wanted_cores)

    def _joined(self, fd: int) -> None:
        if self.kept is not None:
            self.kept.store("control", fd)

    def _kill(self) -> None:
        if self._program is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._program, signal.SIGKILL)
        for child in self._children:
            child.kill()
        self._check_end()

    async def adopt(self, record: GuestRecord, left: Left, running: Running | None) -> None:
        """Take over a guest of an earlier agent; the caller destroys one whose start had not returned, or is parked.

        `running` is its program, None if it was not started.
        """
        self.state, self._made, self._made_unix_s = record.state, record.made, record.made_unix_s
        self._held_at, self._order, self._report = record.held_at, record.order, record.report
        self._done, self._trouble = record.done, record.trouble
        self._note_segments(map(Path, record.segments))
        self._progress.again(record.told, record.steps)
        if running is None:
            left.close()
            await self._link.listen()
            return
        channels = dict(left.channels)
        if "pmi" in channels:  # the keeper has it
            os.close(channels.pop("pmi"))
        self._take(running)
        self._program = channels.get("program")
        if record.pmi is not None:
            self.rank.take_over(record.pmi)
        try:
            if "control" in channels:  # first: the program may have ended, and have reported the reason
                self._link.again(channels["control"], record.pid or running.pid, left.heard)
                if self.kept is not None:
                    self.kept.heard()
            self.rank.again(left.request)
            await self._go_on(record.pid)
        except (OSError, DriverError) as error:
            if not running.exited.done():  # else it has ended
                self._trouble = self._trouble or f"it could not be taken over: {error}"
                self._kill()
        self._check_end()

    async def _go_on(self, pid: int | None) -> None:
        """Cap the program again, and repeat the last agent's order, which may not have been sent."""
        if self.state is State.SAVING and self._order is not None:
            self.saving = asyncio.get_running_loop().create_task(self._save(*self._order), name="save, again")
            self.saving.add_done_callback(self._log_failure)
        if self._program is None or pid is None:
            return
        self._records.add(pid)
        await self._cap.take(pid, again=True)
        if self._share is not None:
            await self._share.take()
        if self._made and not self._done and self._link.open:
            await self._cap.set(self._cap.wanted_cores if self.state is State.RUNNING else None)
            if self.state is State.RUNNING:
                self._link.send("release")

    # --- operations

    async def made(self) -> None:
        """Wait until the program has its memory, set the cap, and let it work."""
        if self.state is State.WAITING:
            self.state = State.STARTING
        await self._wait_for("ready")
        await self.release()
        self._made = True
        self.note()

    async def set_cap(self, cap_cores: float) -> float:
        """Set the cap and return the one in force; while the guest is not running the new cap is kept for later."""
        self._cap.wanted_cores = cap_cores
        async with self._end_told():
            if self.state is State.RUNNING:
                found = await self._cap.apply()
                self.note()
                return found
            self.note()
            in_force = self._cap.in_force()
            return self._cap.most_cores if in_force is None else in_force  # no program yet: nothing is under a cap

    async def set_share(self, share_cores: float) -> float:
        """Set the share; return it as read back."""
        async with self._end_told():
            if self._share is None:
                raise DriverError(f"guest {self.spec.guest} has no share: it is capped")
            found = await self._share.set(share_cores)
            self.note()
            return found

    async def hold(self) -> int:
        """Lift the cap and stop at the next consistent point; return it."""
        async with self._end_told():
            await self._give_up_save()
            self._must_be(State.RUNNING, State.HELD)
            self.state = State.HELD
            await self._cap.set(None)
            self.note()
            await self._ask("hold", "held")
            return self._held_at

    async def release(self) -> None:
        """Set the cap and continue."""
        await self._give_up_save()
        self._must_be(State.STARTING, State.RUNNING, State.HELD)
        await self._cap.apply()
        self.state = State.RUNNING
        self.note()
        await self._ask("release", "released")

    async def save(self, at: int | None, image: Path) -> SaveReport:
        """Save the guest at iteration `at`, after which it ends; after a failure it is still held.

        If an earlier agent has ordered a save to that image, its result is returned.
        """
        self._waiting += 1
        try:
            if self.saving is not None and self._order is not None and self._order[1] == str(image):
                return await asyncio.shield(self.saving)
            self._must_be(State.HELD)
            self.state = State.SAVING
            self._order, self._report = (self._held_at if at is None else at, str(image)), None
            self.note()
            return await self._save(*self._order)
        finally:
            self._waiting -= 1

    async def _save(self, at: int, path: str) -> SaveReport:
        try:
            if self._report is None:
                message = await self._ask("save", "saved", "save_failed", at=at, path=path)
                if message.kind == "save_failed":
                    raise DriverError(f"guest {self.spec.guest}: {message.fields['error']}")
                self._report = message.fields
            await asyncio.shield(self.gone)
            if self._trouble:
                raise DriverError(f"guest {self.spec.guest}: {self._trouble}")
            return SaveReport(**self._report)
        finally:
            if self.state is State.SAVING:
                self.state = State.HELD
                self.note()

    def _log_failure(self, saving: asyncio.Task[SaveReport]) -> None:
        if not saving.cancelled() and (error := saving.exception()) is not None:
            _log.warning("guest %s, being saved when its last agent ended: %s", self.spec.guest, error)

    async def _give_up_save(self) -> None:
        """Cancel the save that an earlier agent has ordered; no caller awaits it any more."""
        if self.saving is not None and self.state is State.SAVING:
            self.saving.cancel()
            await asyncio.wait((self.saving,))
            self.saving = None

    async def save_whole(self, write: Callable[[], Awaitable[SaveReport]]) -> SaveReport:
        """Have `write` write the guest's processes, then end them; after a failure the guest is still held."""
        self._must_be(State.HELD)
        await self._check_connected()
        self.state = State.SAVING
        self._parked = True
        self.note()
        try:
            await self._link.park()
            report = await write()
            self._whole = True
        finally:
            self._parked = False
            if not self._whole:  # else the record stays that of a parked guest, which the next agent destroys
                await asyncio.shield(self._call_back())
        self._kill()
        await asyncio.shield(self.gone)
        return report

    async def _call_back(self) -> None:
        self._check_end()
        if self.state is State.ENDED:
            return
        await self._link.listen()
        joined = asyncio.ensure_future(self._link.joined.wait())
        await asyncio.wait((joined, self.gone), timeout=_BACK_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
        joined.cancel()
        if self._link.open:
            self.state = State.HELD
            self.note()
        elif not self.gone.done():
            self._trouble = self._trouble or f"it did not reconnect within {_BACK_WITHIN_S:g} s"
            self._kill()

    async def stop(self) -> None:
        """Destroy the guest."""
        self._stopping = True
        self._kill()
        await asyncio.shield(self.gone)

    def sample(self) -> GuestSample:
        """Read its resource usage."""
        pids = [child.pid for child in self._children if not child.exited.done()]
        if self._link.pid is not None and self._link.open and self._link.pid not in pids:
            pids.append(self._link.pid)
        in_force = self._cap.in_force()
        self._cap.look_after(in_force)
        throttled_s = self._cap.throttled_s() if self.spec.watch_s else None
        sample = self._progress.sample(
            self.spec.guest, self.state.value, pids, in_force, self._cap.wanted_cores, throttled_s
        )
        if self._share is None:
            return sample
        share_cores = self._share.in_force()
        self._share.look_after(share_cores)
        return msgspec.structs.replace(sample, share_cores=share_cores)

    @property
    def told(self) -> RankProgress | None:
        """Its last report."""
        return self._progress.told

    def _live_pid(self) -> int | None:
        """Return the process id of the program while it is certainly the program's."""
        return self._link.pid if self._link.open else None

    def meter(self) -> Meter:
        """See `Meters.meter`: all threads of the program, to which its cap applies."""
        if self._link.pid is None:
            raise DriverError(f"guest {self.spec.guest}: its program does not run yet")

        return self._progress.reader(self.spec.guest, self._live_pid)

    # --- the channel

    async def _ask(self, kind: str, *answers: str, **fields: object) -> Message:
        await self._check_connected()
        self._link.send(kind, **fields)
        return await self._wait_for(*answers)

    async def _check_connected(self) -> None:
        """If the program hung up, wait until its processes have ended, and raise the reason of the guest's end."""
        if not self._link.open:
            await asyncio.shield(self.gone)
            raise DriverError(f"guest {self.spec.guest}: {self._trouble or 'it has ended'}")

    async def _wait_for(self, *answers: str) -> Message:
        if self.state is State.ENDED:
            raise DriverError(f"guest {self.spec.guest}: {self._trouble or 'it has ended'}")
        return await self._asked.wait(*answers)

    def _must_be(self, *states: State) -> None:
        if self.state not in states:
            raise DriverError(f"guest {self.spec.guest} is {self.state}: expected {' or '.join(states)}")

    def _heard(self, message: Message | ChannelError) -> None:
        if isinstance(message, ChannelError):
            self._spoke_nonsense(str(message))
            return
        fields = message.fields
        match message.kind:
            case "hello":
                self._greet()
            case "progress":
                if self._progress.take(fields, self._live_pid()):
                    self._tell(DriverEvent(self.spec.guest, "progress", fields["mono_ns"], {"units": fields["units"]}))
            case "done":
                at_ns = time.monotonic_ns() if self._done is None else self._done[0]
                self._done = at_ns, self._progress.finish(fields, at_ns, self._live_pid())
                self.note()
                self._asked.fail("it is done")
            case "joined" if not self._segments:  # MPI starts once per process
                self._note_segments(Path(str(name)) for name in fields["segments"][:_MOST_SEGMENTS])
                self.note()
            case "error":
                self._trouble = self._trouble or str(fields["message"])
                self.note()
            case "held" | "released" | "saved" | "save_failed":
                self._take_answer(message)
            case _:
                self._asked.take(message)

    def _take_answer(self, message: Message) -> None:
        """Take an answer to a hold, a release or a save; it decides whether the guest is saved or continues."""
        if message.kind == "saved":
            self._report = message.fields if self._order is not None else None
        elif message.kind == "save_failed" and self.state is State.SAVING:
            self.state = State.HELD
        if message.kind == "held":
            self._held_at = message.fields["at"]
        if message.kind != "saved" and self.state is not State.SAVING:  # else an earlier agent ordered that hold, too
            self._order = self._report = None
        self.note()
        self._asked.take(message)

    def _spoke_nonsense(self, why: str) -> None:
        self._trouble = self._trouble or f"protocol violation: {why}"
        self._kill()

    def _greet(self) -> None:
        """Take the program under control: process descriptor, record, cap, and task."""
        pid = self._link.pid
        if pid is None or self._program is not None:
            return
        with contextlib.suppress(ProcessLookupError):  # it may have ended at once; its channel will report that
            self._program = os.pidfd_open(pid)
            if self.kept is not None:
                self.kept.store("program", self._program)
        self._records.add(pid)
        self._greeting = asyncio.get_running_loop().create_task(self._give_task(pid), name="greet")

    async def _give_task(self, pid: int) -> None:
        await self._inside.wait()  # before that, no caller waits for an answer
        try:
            await self._cap.take(pid)
            if self._share is not None:
                await self._share.take()
            self._link.send(
                "task", v=VERSION, spec=msgspec.to_builtins(self.spec), image=self._image and str(self._image)
            )
        except (OSError, DriverError) as error:
            self._trouble = self._trouble or f"it could not be put under its cap: {error}"
            self._kill()

    # --- its end

    @contextlib.asynccontextmanager
    async def _end_told(self) -> AsyncIterator[None]:
        """Context of an order that may come too late: it fails only after the guest's end was reported."""
        try:
            if self.state is State.ENDED:
                raise DriverError(f"guest {self.spec.guest} has ended")
            yield
        except DriverError:
            if self._done or self.state is State.ENDED:
                await asyncio.shield(self.gone)
            raise

    @property
    def _saved(self) -> bool:
        return self._whole or self._report is not None

    @property
    def unclaimed(self) -> tuple[int, Path, SaveReport] | None:
        """The save that it has ended with, if no order waits for that: its iteration, its file, its report."""
        if self.state is not State.ENDED or self._stopping or self._trouble or self._waiting:
            return None
        return None if self._order is None or self._report is None else (
            self._order[0], Path(self._order[1]), SaveReport(**self._report)
        )  # fmt: skip

    def _hung_up(self) -> None:
        """Kill the processes around the program, unless they end with it within a moment."""
        asyncio.get_running_loop().call_later(0 if self._stopping else _GRACE_S, self._kill_if_left)
        self._check_end()

    def _kill_if_left(self) -> None:
        if self.state is not State.ENDED and not self._done and not self._saved:
            self._kill()

    def _check_end(self) -> None:
        """Report the end once all processes have ended and all their messages were read."""
        if self.state is State.ENDED or self._link.open or any(not child.exited.done() for child in self._children):
            return
        if self._parked and not self._stopping:
            return
        if not self._inside.is_set() or (not self._children and not self._stopping):
            return
        codes = [child.exited.result() for child in self._children]
        if self.kept is not None and self.kept in self._children:
            self.log.remember(self.kept.tail)
        well = self._whole or all(code == 0 for code in codes)
        was, self.state = self.state, State.ENDED
        if self._stopping or (well and (self._saved or self._done)):
            self._trouble = ""
        else:
            self._trouble = describe(self._trouble, codes, self.log)
        self._asked.fail(self._trouble or "it was stopped")
        self._finishing = asyncio.get_running_loop().create_task(self._finish(was), name="finish")

    async def _finish(self, was: State) -> None:
        pid = self._link.pid
        if self._greeting is not None:
            await self._greeting
        await self._cap.remove()
        self._link.close()
        self.rank.close()
        if self.spec.program.ranks > 1 and (self._stopping or self._trouble):  # perhaps while MPI started
            self._note_segments(await asyncio.to_thread(abandoned_segments, self._made_unix_s))
        remove_segments(self._segments)
        self._records.unshare(self._segments)
        if self._program is not None:
            os.close(self._program)
            self._program = None
        self._records.discard(*(child.pid for child in self._children), *(() if pid is None else (pid,)))
        self._forget(self)
        self.gone.set_result(None)
        if self.kept is not None and self._stopping:
            self.kept.drop()
        if self._stopping or (self._saved and (self._waiting or not self._trouble)):
            return
        if self._done and not self._trouble:
            self._tell(DriverEvent(self.spec.guest, "done", self._done[0], self._done[1]))
        elif self._made or was is State.WAITING:
            self._tell(DriverEvent(self.spec.guest, "failed", time.monotonic_ns(), {"reason": self._trouble}))
