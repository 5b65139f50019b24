"""One guest: a program, the processes around it, its control channel and its cap."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import msgspec

from node_agent.drivers.caps.duty import process_clock
from node_agent.drivers.caps.protocol import Caps
from node_agent.drivers.native import RankProgress
from node_agent.drivers.pmi.link import PmiLink
from node_agent.drivers.pmi.server import Barrier, PmiServer
from node_agent.drivers.procs.child import Child, Log, Running, ending
from node_agent.drivers.procs.link import GuestLink
from node_agent.drivers.procs.records import ProcessRecords
from node_agent.drivers.procs.usage import Usage, read_usage
from node_agent.drivers.protocol import DriverError, DriverEvent, Meter, Reading, SaveReport, SuspectError
from node_agent.guests.channel import VERSION, ChannelError, Message
from node_agent.guests.pace import supersteps_of
from node_agent.programs.segments import abandoned_segments, is_segment, remove_segments
from testbed.bus.caps import same_cap
from testbed.bus.messages import MPI_BARRIER, GuestSpec, RankKeys
from testbed.bus.telemetry import GuestSample, Supersteps

_GRACE_S = 1.0  # between the end of a program's channel and the end of its processes
_MOST_SEGMENTS = 64  # files of shared memory that MPI makes for one rank: there are a few
_BACK_WITHIN_S = 10.0  # for the reconnection of a parked program whose save failed


class Enclosure(Protocol):
    """An enclosure (such as a container) that starts a guest's program."""

    def __call__(
        self, spec: GuestSpec, image: Path | None, argv: list[str], env: dict[str, str], folder: Path,
        on_output: Callable[[bytes], None],
    ) -> Awaitable[Running]:  # fmt: skip
        """Start a command in `folder`, whose program may read `image`."""


class State(StrEnum):
    """The state of a guest, as reported in samples."""

    WAITING = "waiting"  # for its MPI job to begin
    STARTING = "starting"
    RUNNING = "running"
    HELD = "held"
    SAVING = "saving"
    ENDED = "ended"


class ProcessGuest:
    """A guest from its creation to its end.

    It is uncapped while it is made, held or saved: this is the machine's work, and a checkpoint must not be slower
    under a lower cap. The cap is set before the program is ordered to work or to continue. `gone` is done when nothing
    of the guest is left; `forget` is called just before, so that its name is free as soon as the end is reported.
    """

    def __init__(
        self, spec: GuestSpec, cap_cores: float, image: Path | None, socket: Path, log: Path, caps: Caps,
        records: ProcessRecords, tell: Callable[[DriverEvent], None], forget: Callable[[ProcessGuest], None],
        enclosure: Enclosure | None = None,
    ) -> None:  # fmt: skip
        self.spec = spec
        self._enclosure = enclosure
        self.state = State.WAITING
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.log = Log(log)
        self._folder = log.parent
        self._cap_cores = cap_cores
        self._image = image
        self._caps = caps
        self._records = records
        self._tell = tell
        self._forget = forget
        self._link = GuestLink(socket, self._heard, self._hung_up)
        self._pmi: PmiLink | None = None
        self._children: list[Running] = []
        self._inside = asyncio.Event()  # not set while it is being started in its enclosure
        self._inside.set()
        self._program: int | None = None  # a descriptor of the program's process
        self._answer: tuple[tuple[str, ...], asyncio.Future[Message]] | None = None
        self.told: RankProgress | None = None  # its last report
        self._steps: Supersteps | None = None
        self._done: tuple[int, dict[str, Any]] | None = None
        self._held_at = 0
        self._made = False
        self._saved = False
        self._parked = False  # `save_whole` has closed its channel, and may be ending its processes
        self._whole = False  # its processes were written, and are therefore ended
        self._stopping = False
        self._trouble = ""
        self._usage = Usage()
        self._cpu_s = 0.0  # of the program alone
        self._segments: set[Path] = set()
        self._made_unix_s = time.time()
        self._capping = asyncio.Lock()  # held while a cap is being set: a read may return the old or the new one
        self._repairing: asyncio.Task[None] | None = None
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
        if self._pmi is not None:
            raise SuspectError(f"guest {self.spec.guest} has joined its MPI job already: expected one join")
        self._must_be(State.WAITING)
        program = self.spec.program
        self._pmi = PmiLink(PmiServer(program.rank, program.ranks, session), self._at_barrier, self._spoke_nonsense)
        path = self._link.path.with_suffix(".pmi")
        await self._pmi.listen(path, lambda pid: pid == self._link.pid)
        return path

    def pass_barrier(self, session: str, number: int, keys: Iterable[RankKeys], *, last: bool) -> None:
        """Let the guest's rank pass a barrier; raises `DriverError` for invalid keys."""
        if self._pmi is not None:
            self._pmi.pass_barrier(session, number, keys, last=last)

    def _at_barrier(self, barrier: Barrier) -> None:
        self._tell(DriverEvent(self.spec.guest, MPI_BARRIER, time.monotonic_ns(), barrier.detail()))

    async def enter(self, argv: list[str], env: dict[str, str]) -> None:
        """Start the guest's program in the guest's enclosure, or directly on the machine if it has none."""
        if self._enclosure is None:
            self._take(Child(argv, env, self._folder, self.log.write))
            return
        self._inside.clear()
        try:
            self._take(await self._enclosure(self.spec, self._image, argv, env, self._folder, self.log.write))
        finally:
            self._inside.set()
            if self._stopping:  # stopped while it was being started
                self._kill()

    def _take(self, child: Running) -> None:
        self._children.append(child)
        self._records.add(child.pid)
        child.exited.add_done_callback(lambda _exited: self._check_end())

    def _note_segments(self, segments: Iterable[Path]) -> None:
        self._segments |= {path for path in segments if is_segment(path)}
        self._records.share(self._segments)

    def _kill(self) -> None:
        if self._program is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._program, signal.SIGKILL)
        for child in self._children:
            child.kill()
        self._check_end()

    # --- operations

    async def made(self) -> None:
        """Wait until the program has its memory, set the cap, and let it work."""
        if self.state is State.WAITING:
            self.state = State.STARTING
        await self._wait_for("ready")
        await self.release()
        self._made = True

    async def set_cap(self, cap_cores: float) -> float:
        """Set the cap and return the one in force; while the guest is not running the new cap is kept for later."""
        self._cap_cores = cap_cores
        async with self._end_told():
            if self.state is State.RUNNING:
                return await self._apply_cap()
            in_force = self._in_force()
            return self._most_cores if in_force is None else in_force  # no program yet: nothing is under a cap

    async def hold(self) -> int:
        """Lift the cap and stop at the next consistent point; return it."""
        async with self._end_told():
            self._must_be(State.RUNNING, State.HELD)
            self.state = State.HELD
            await self._cap(None)
            message = await self._ask("hold", "held")
            self._held_at = int(message.fields["at"])
            return self._held_at

    async def release(self) -> None:
        """Set the cap and continue."""
        self._must_be(State.STARTING, State.RUNNING, State.HELD)
        await self._apply_cap()
        self.state = State.RUNNING
        await self._ask("release", "released")

    async def save(self, at: int | None, image: Path) -> SaveReport:
        """Write the guest at iteration `at` and let it end; after a failure it is still held."""
        self._must_be(State.HELD)
        self.state = State.SAVING
        try:
            wanted = self._held_at if at is None else at
            message = await self._ask("save", "saved", "save_failed", at=wanted, path=str(image))
            if message.kind == "save_failed":
                raise DriverError(f"guest {self.spec.guest}: {message.fields['error']}")
            self._saved = True
            await asyncio.shield(self.gone)
            if self._trouble:
                raise DriverError(f"guest {self.spec.guest}: {self._trouble}")
            return SaveReport(**message.fields)
        finally:
            if self.state is State.SAVING:
                self.state = State.HELD
                self._saved = False

    async def save_whole(self, write: Callable[[], Awaitable[SaveReport]]) -> SaveReport:
        """Have `write` write the guest's processes, then end them; after a failure the guest is still held."""
        self._must_be(State.HELD)
        await self._check_connected()
        self.state = State.SAVING
        self._parked = True
        try:
            await self._link.park()
            report = await write()
            self._saved = self._whole = True
        finally:
            self._parked = False
            if not self._saved:
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
        elif not self.gone.done():
            self._trouble = self._trouble or f"it did not call again within {_BACK_WITHIN_S:g} s"
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
        usage = read_usage(pids)
        if usage is not None and usage.cpu_s >= self._usage.cpu_s:
            self._usage = usage
        in_force = self._in_force()
        self._look_after(in_force)
        told = self.told
        steps = self._steps
        if steps is not None:
            self._steps = msgspec.structs.replace(steps, longest_s=0.0)
        return GuestSample(
            guest=self.spec.guest, state=self.state.value, cap_cores=in_force, wanted_cores=self._cap_cores,
            cpu_s=self._usage.cpu_s, rss_mib=self._usage.rss_mib, read_mib=self._usage.read_mib,
            written_mib=self._usage.written_mib,
            units_done=told.units if told else 0, units_mono_ns=told.mono_ns if told else 0, supersteps=steps,
        )  # fmt: skip

    def meter(self) -> Meter:
        """See `Meters.meter`: all threads of the program, to which its cap applies."""
        if self._link.pid is None:
            raise DriverError(f"guest {self.spec.guest}: its program does not run yet")

        def read() -> Reading:
            cpu_s = self._program_cpu_s()
            if not self._link.open:
                raise DriverError(f"guest {self.spec.guest} has ended")
            return Reading(cpu_s, self.told.units if self.told else 0)

        return read

    def _program_cpu_s(self) -> float:
        """Return the CPU time of the program's threads; the last value once they are gone."""
        if self._link.pid is not None and self._link.open:  # the process id is still that of the program
            with contextlib.suppress(OSError):
                self._cpu_s = time.clock_gettime(process_clock(self._link.pid))
        return self._cpu_s

    # --- the channel

    @property
    def _most_cores(self) -> float:
        return float(self.spec.program.workers)

    def _in_force(self) -> float | None:
        """Return the cap in force, None where that cannot be read."""
        try:
            return float(self._caps.read(self.spec.guest))
        except (OSError, KeyError, ValueError):  # not under a cap yet, or it has ended just now
            return None

    async def _apply_cap(self) -> float:
        wanted = self._cap_cores
        found = await self._cap(wanted)
        if found is None or not same_cap(found, wanted, self._most_cores):
            raise DriverError(f"guest {self.spec.guest}: cap {wanted} cores was read back as {found}")
        return min(found, self._most_cores)

    def _look_after(self, in_force: float | None) -> None:
        """Detect a cap that was changed from outside."""
        idle = not self._capping.locked() and (self._repairing is None or self._repairing.done())
        if self.state is not State.RUNNING or in_force is None or not idle:
            return
        if not same_cap(in_force, self._cap_cores, self._most_cores):
            self._repairing = asyncio.get_running_loop().create_task(self._repair(in_force), name="set a cap again")

    async def _repair(self, found: float) -> None:
        if self.state is not State.RUNNING:
            return
        detail: dict[str, object] = {"wanted": self._cap_cores, "found": found if found < self._most_cores else -1.0}
        self._tell(DriverEvent(self.spec.guest, "drift", time.monotonic_ns(), detail))
        with contextlib.suppress(DriverError):
            await self._apply_cap()

    async def _cap(self, cap_cores: float | None) -> float | None:
        try:
            async with self._capping:
                return await self._caps.set(self.spec.guest, cap_cores)
        except (OSError, KeyError, ValueError) as error:  # its process may have ended just now
            raise DriverError(f"guest {self.spec.guest}: its cap could not be set: {error}") from error

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
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._answer = (answers, future)
        try:
            return await future
        finally:
            self._answer = None

    def _fail_waiter(self, reason: str) -> None:
        if self._answer is not None and not self._answer[1].done():
            self._answer[1].set_exception(DriverError(f"guest {self.spec.guest}: {reason}"))

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
                first = self.told is None
                self.told = RankProgress(fields["units"], fields["mono_ns"], self._program_cpu_s())
                self._steps = supersteps_of(fields, self._steps)
                if first:
                    self._tell(DriverEvent(self.spec.guest, "progress", fields["mono_ns"], {"units": fields["units"]}))
            case "done":
                self._steps = supersteps_of(fields, self._steps)
                if self._steps is not None:  # it includes what no sample has reported yet
                    fields = {**fields, "longest_s": self._steps.longest_s}
                self._done = (time.monotonic_ns(), fields)
                self.told = RankProgress(fields["units"], self._done[0], self._program_cpu_s())
                self._fail_waiter("it is done")
            case "joined" if not self._segments:  # MPI starts once per process
                self._note_segments(Path(str(name)) for name in fields["segments"][:_MOST_SEGMENTS])
            case "error":
                self._trouble = self._trouble or str(fields["message"])
            case _:
                if self._answer is not None and message.kind in self._answer[0] and not self._answer[1].done():
                    self._answer[1].set_result(message)

    def _spoke_nonsense(self, why: str) -> None:
        self._trouble = self._trouble or f"it spoke nonsense: {why}"
        self._kill()

    def _greet(self) -> None:
        """Take the program under control: a descriptor, a record, a place under the cap, its task."""
        pid = self._link.pid
        if pid is None or self._program is not None:
            return
        with contextlib.suppress(ProcessLookupError):  # it may have ended at once; its channel will report that
            self._program = os.pidfd_open(pid)
        self._records.add(pid)
        self._greeting = asyncio.get_running_loop().create_task(self._give_task(pid), name="greet")

    async def _give_task(self, pid: int) -> None:
        await self._inside.wait()  # before that, no caller waits for an answer
        try:
            await self._caps.add(self.spec.guest, pid, self.spec.program.workers)
            self._link.send(
                "task", v=VERSION, spec=msgspec.to_builtins(self.spec), image=self._image and str(self._image)
            )
        except (OSError, DriverError) as error:
            self._trouble = self._trouble or f"it could not be put under its cap: {error}"
            self._kill()

    # --- its end

    @contextlib.asynccontextmanager
    async def _end_told(self) -> AsyncIterator[None]:
        """For an order that may come too late: it fails only after the guest's end was reported."""
        try:
            if self.state is State.ENDED:
                raise DriverError(f"guest {self.spec.guest} has ended")
            yield
        except DriverError:
            if self._done or self.state is State.ENDED:
                await asyncio.shield(self.gone)
            raise

    def _hung_up(self) -> None:
        """Give the processes around the program a moment to end with it."""
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
        well = self._whole or all(code == 0 for code in codes)
        was, self.state = self.state, State.ENDED
        if self._stopping or (well and (self._saved or self._done)):
            self._trouble = ""
        else:
            self._trouble = self._describe(codes)
        self._fail_waiter(self._trouble or "it was stopped")
        self._finishing = asyncio.get_running_loop().create_task(self._finish(was), name="finish")

    def _describe(self, codes: list[int]) -> str:
        endings = ", ".join(ending(code) for code in codes)
        said = self.log.tail()
        return (self._trouble or f"it ended by itself: {endings}") + (f"; it printed: {said}" if said else "")

    async def _finish(self, was: State) -> None:
        pid = self._link.pid
        if self._greeting is not None:
            await self._greeting
        await self._caps.remove(self.spec.guest)
        self._link.close()
        if self._pmi is not None:
            self._pmi.close()
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
        if self._stopping or self._saved:
            return
        if self._done and not self._trouble:
            self._tell(DriverEvent(self.spec.guest, "done", self._done[0], self._done[1]))
        elif self._made or was is State.WAITING:
            self._tell(DriverEvent(self.spec.guest, "failed", time.monotonic_ns(), {"reason": self._trouble}))
