"""One guest: a program, the processes around it, its cap and its share, from its creation to its end."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from node_agent.drivers.caps.guest_share import GuestShare
from node_agent.drivers.caps.protocol import Caps
from node_agent.drivers.native import RankProgress
from node_agent.drivers.procs.child import Child, Running, describe
from node_agent.drivers.procs.enclosure import Enclosure
from node_agent.drivers.procs.guest_cap import GuestCap
from node_agent.drivers.procs.guest_orders import GuestOrders
from node_agent.drivers.procs.guest_processes import GuestProcesses
from node_agent.drivers.procs.guest_record import GuestRecord, State
from node_agent.drivers.procs.guest_status import GuestStatus
from node_agent.drivers.procs.keeping import Kept, Left
from node_agent.drivers.procs.link import GuestLink
from node_agent.drivers.procs.log import Log
from node_agent.drivers.procs.progress import GuestProgress
from node_agent.drivers.procs.rank import GuestRank
from node_agent.drivers.procs.records import ProcessRecords
from node_agent.drivers.protocol import DriverError, DriverEvent, Meter, SaveReport, SuspectError
from node_agent.guests.channel import VERSION, ChannelError, Message
from node_agent.programs.segments import abandoned_segments
from testbed.bus.messages import GuestSpec
from testbed.bus.telemetry import GuestSample

_GRACE_S = 1.0  # between the end of a program's channel and the end of its processes
_MOST_SEGMENTS = 64  # files of shared memory that MPI makes for one rank: there are a few


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
        self._status = GuestStatus(spec.guest)
        self.gone = self._status.gone
        self.log = Log(log)
        self._folder = log.parent
        self._log_path = log
        self._image = image
        self._cap = GuestCap(spec, cap_cores, caps, tell, lambda: self.state is State.RUNNING)
        self._share = share
        self._tell = tell
        self._forget = forget
        self._processes = GuestProcesses(records, self._check_end)
        self._link = GuestLink(socket, self._heard, self._hung_up, self._joined)
        self._orders = GuestOrders(self._status, self._link, self._cap, self.note, self._kill, self._check_end)
        self.rank = GuestRank(spec, kept, self.note, tell, self._spoke_nonsense)
        self._inside = asyncio.Event()  # not set while it is being started in its enclosure
        self._inside.set()
        self._progress = GuestProgress()
        self._made = False
        self._stopping = False
        self._made_unix_s = time.time()
        self._greeting: asyncio.Task[None] | None = None
        self._finishing: asyncio.Task[None] | None = None

    @property
    def state(self) -> State:
        """The state, as reported in samples."""
        return self._status.state

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
        self._status.must_be(State.WAITING)
        path = self._link.path.with_suffix(".pmi")
        await self.rank.open(session, path, lambda pid: pid == self._link.pid)
        return path

    async def enter(self, argv: list[str], env: dict[str, str]) -> None:
        """Start the guest's program in the guest's enclosure, or directly on the machine if it has none."""
        self._inside.clear()
        try:
            self._processes.take(await self._start(argv, env))
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

    def note(self, took: int = 0, answer: str | None = None) -> None:
        """Store the guest's record at the keeper, and have it answer `took` bytes of its rank's requests."""
        if self.kept is not None:
            files = map(str, self._processes.segments)
            self.kept.note(self.record(), took, answer, freeze=self._cap.needs_agent, files=files)

    def record(self) -> str:
        """Return the guest's record for the next agent."""
        told, orders = self._progress.told, self._orders
        return GuestRecord(
            self._spec_now(), self._cap.wanted_cores, self.state, self._made, str(self._log_path), self._made_unix_s,
            None if self._image is None else str(self._image), self._link.pid, orders.held_at, orders.order,
            orders.report, tuple(map(str, self._processes.segments)), self._status.done,
            None if told is None else (told.units, told.mono_ns), self._progress.steps, self._status.trouble,
            self.rank.server, orders.parked,
        ).encode()  # fmt: skip

    def _spec_now(self) -> GuestSpec:
        """Return its specification with its present share."""
        share = self._share
        return self.spec if share is None else msgspec.structs.replace(self.spec, share_cores=share.wanted_cores)

    def _joined(self, fd: int) -> None:
        if self.kept is not None:
            self.kept.store("control", fd)

    def _kill(self) -> None:
        self._processes.kill()
        self._check_end()

    async def adopt(self, record: GuestRecord, left: Left, running: Running | None) -> None:
        """Take over a guest of an earlier agent; the caller destroys one whose start had not returned, or is parked.

        `running` is its program, None if it was not started.
        """
        self._status.state, self._status.trouble = record.state, record.trouble
        self._made, self._made_unix_s, self._status.done = record.made, record.made_unix_s, record.done
        self._orders.take_over(record)
        self._processes.share(map(Path, record.segments))
        self._progress.again(record.told, record.steps)
        if running is None:
            left.close()
            await self._link.listen()
            return
        channels = dict(left.channels)
        if "pmi" in channels:  # the keeper has it
            os.close(channels.pop("pmi"))
        self._processes.take(running)
        self._processes.program = channels.get("program")
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
                self._status.blame(f"it could not be taken over: {error}")
                self._kill()
        self._check_end()

    async def _go_on(self, pid: int | None) -> None:
        """Cap the program again, and repeat the last agent's order, which may not have been sent."""
        self._orders.save_again()
        if self._processes.program is None or pid is None:
            return
        self._processes.record(pid)
        await self._cap.take(pid, again=True)
        if self._share is not None:
            await self._share.take()
        if self._made and not self._status.done and self._link.open:
            await self._cap.set(self._cap.wanted_cores if self.state is State.RUNNING else None)
            if self.state is State.RUNNING:
                self._link.send("release")

    # --- operations

    async def made(self) -> None:
        """Wait until the program has its memory, set the cap, and let it work."""
        await self._orders.begin()
        self._made = True
        self.note()

    async def set_cap(self, cap_cores: float) -> float:
        """Set the cap and return the one in force; while the guest is not running the new cap is kept for later."""
        self._cap.wanted_cores = cap_cores
        async with self._status.end_told():
            if self.state is State.RUNNING:
                found = await self._cap.apply()
                self.note()
                return found
            self.note()
            in_force = self._cap.in_force()
            return self._cap.most_cores if in_force is None else in_force  # no program yet: nothing is under a cap

    async def set_share(self, share_cores: float) -> float:
        """Set the share; return it as read back."""
        async with self._status.end_told():
            if self._share is None:
                raise DriverError(f"guest {self.spec.guest} has no share: it is capped")
            found = await self._share.set(share_cores)
            self.note()
            return found

    async def hold(self) -> int:
        """See `GuestOrders.hold`."""
        return await self._orders.hold()

    async def release(self) -> None:
        """See `GuestOrders.release`."""
        await self._orders.release()

    async def save(self, at: int | None, image: Path) -> SaveReport:
        """See `GuestOrders.save`."""
        return await self._orders.save(at, image)

    async def save_whole(self, write: Callable[[], Awaitable[SaveReport]]) -> SaveReport:
        """See `GuestOrders.save_whole`."""
        return await self._orders.save_whole(write)

    @property
    def saving(self) -> asyncio.Task[SaveReport] | None:
        """The save that an earlier agent has ordered."""
        return self._orders.saving

    async def stop(self) -> None:
        """Destroy the guest."""
        self._stopping = True
        self._kill()
        await asyncio.shield(self.gone)

    def sample(self) -> GuestSample:
        """Read its resource usage."""
        pids = self._processes.live_pids()
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
                at_ns = time.monotonic_ns() if self._status.done is None else self._status.done[0]
                self._status.done = at_ns, self._progress.finish(fields, at_ns, self._live_pid())
                self.note()
                self._orders.fail("it is done")
            case "joined" if not self._processes.segments:  # MPI starts once per process
                self._processes.share(Path(str(name)) for name in fields["segments"][:_MOST_SEGMENTS])
                self.note()
            case "error":
                self._status.blame(str(fields["message"]))
                self.note()
            case _:
                self._orders.take(message)

    def _spoke_nonsense(self, why: str) -> None:
        self._status.blame(f"protocol violation: {why}")
        self._kill()

    def _greet(self) -> None:
        """Take the program under control: process descriptor, record, cap, and task."""
        pid = self._link.pid
        if pid is None or self._processes.program is not None:
            return
        program = self._processes.open_program(pid)  # None if it ended at once; its channel will report that
        if program is not None and self.kept is not None:
            self.kept.store("program", program)
        self._processes.record(pid)
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
            self._status.blame(f"it could not be put under its cap: {error}")
            self._kill()

    # --- its end

    @property
    def unclaimed(self) -> tuple[int, Path, SaveReport] | None:
        """The save that it has ended with, if no order waits for that: its iteration, its file, its report."""
        ended = self.state is State.ENDED and not self._stopping and not self._status.trouble
        return self._orders.unclaimed if ended else None

    def _hung_up(self) -> None:
        """Kill the processes around the program, unless they end with it within a moment."""
        asyncio.get_running_loop().call_later(0 if self._stopping else _GRACE_S, self._kill_if_left)
        self._check_end()

    def _kill_if_left(self) -> None:
        if self.state is not State.ENDED and not self._status.done and not self._orders.saved:
            self._kill()

    def _check_end(self) -> None:
        """Report the end once all processes have ended and all their messages were read."""
        if self.state is State.ENDED or self._link.open or self._processes.live_pids():
            return
        if self._orders.parked and not self._stopping:
            return
        if not self._inside.is_set() or (not self._processes.children and not self._stopping):
            return
        codes = self._processes.codes()
        if self.kept is not None and self.kept in self._processes.children:
            self.log.remember(self.kept.tail)
        well = self._orders.whole or all(code == 0 for code in codes)
        was, self._status.state = self.state, State.ENDED
        if self._stopping or (well and (self._orders.saved or self._status.done)):
            self._status.trouble = ""
        else:
            self._status.trouble = describe(self._status.trouble, codes, self.log)
        self._orders.fail(self._status.trouble or "it was stopped")
        self._finishing = asyncio.get_running_loop().create_task(self._finish(was), name="finish")

    async def _finish(self, was: State) -> None:
        pid = self._link.pid
        if self._greeting is not None:
            await self._greeting
        await self._cap.remove()
        self._link.close()
        self.rank.close()
        if self.spec.program.ranks > 1 and (self._stopping or self._status.trouble):  # perhaps while MPI started
            self._processes.share(await asyncio.to_thread(abandoned_segments, self._made_unix_s))
        self._processes.clear(pid)
        self._forget(self)
        self.gone.set_result(None)
        if self.kept is not None and self._stopping:
            self.kept.drop()
        if self._stopping or (self._orders.saved and (self._orders.waiting or not self._status.trouble)):
            return
        if self._status.done and not self._status.trouble:
            self._tell(DriverEvent(self.spec.guest, "done", *self._status.done))
        elif self._made or was is State.WAITING:
            self._tell(DriverEvent(self.spec.guest, "failed", time.monotonic_ns(), {"reason": self._status.trouble}))
