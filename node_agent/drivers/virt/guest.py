"""One virtual machine from its creation to its end, on one node."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import libvirt

from node_agent.drivers.caps.guest_share import GuestShare
from node_agent.drivers.protocol import DriverError, DriverEvent, Meter, Reading
from node_agent.drivers.virt.aftermath import is_image_of, is_still_here
from node_agent.drivers.virt.channel import GuestChannel, UnansweredError
from node_agent.drivers.virt.domain_states import resume, suspend
from node_agent.drivers.virt.domain_weights import DomainWeights
from node_agent.drivers.virt.exits import Exits
from node_agent.drivers.virt.guest_cap import GuestCap
from node_agent.drivers.virt.hypervisor import Hypervisor
from node_agent.drivers.virt.output import GuestOutput
from node_agent.drivers.virt.platform import Platform, Vcpus
from node_agent.drivers.virt.rank import GuestRank
from node_agent.drivers.virt.recovery import GiveUp, Reattach, Recovery
from node_agent.drivers.virt.told import Told
from node_agent.guests.task_fields import task_fields
from node_agent.guests.wire import Frame, WireError
from testbed.bus.messages import GuestSpec
from testbed.bus.telemetry import GuestSample
from testbed.errors import FailureCode

T = TypeVar("T")

_log = logging.getLogger(__name__)
_LOOK_WITHIN_S = 2.0
_ABORT_EVERY_S = 0.2
_ABORT_CALL_S = 10.0


class State(StrEnum):
    """The state of a guest, as reported in samples."""

    BOOTING = "booting"
    WAITING = "waiting"  # for its MPI job to begin
    STARTING = "starting"
    RUNNING = "running"
    HELD = "held"
    SAVING = "saving"
    MIGRATING = "migrating"
    ENDED = "ended"


class VirtualGuest:
    """A domain and its known state.

    When it ends by itself, `note_end` is called before its domain is destroyed, `forget` afterwards, and then the end
    is reported.

    Its virtual CPUs are uncapped, or have the part of the whole node, while it boots and fills its memory, as this is
    the machine's work, not the task's.
    """

    def __init__(
        self, spec: GuestSpec, cap_cores: float, hypervisor: Hypervisor, platform: Platform,
        tell: Callable[[DriverEvent], None], forget: Callable[[VirtualGuest], None], node_cores: float,
        note_end: Callable[[GuestSpec, DriverEvent], None] = lambda _spec, _driver_event: None,
    ) -> None:  # fmt: skip
        self.spec = spec
        self.name = spec.guest
        self.state = State.BOOTING
        self._cap = GuestCap(spec, cap_cores, hypervisor, platform, tell)
        self._share: GuestShare | None = None
        if spec.share_cores is not None:
            weights = DomainWeights(hypervisor, platform.timeouts.call_s, self._cap.known_vcpus)
            self._share = GuestShare(spec.guest, spec.share_cores, node_cores, weights, tell)
        self._hypervisor = hypervisor
        self._platform = platform
        self._timeouts = platform.timeouts
        self._tell = tell
        self._forget = forget
        self._note_end = note_end
        self._loop = asyncio.get_running_loop()
        self._output = GuestOutput(hypervisor.file(platform.console_path(self.name)))
        self._channel = GuestChannel(self.name, self._hear)
        self.rank = GuestRank(spec, self._order, tell, self.fail)
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._exits = Exits()
        self._progress_due = True  # after an attach or a release of the program, the first progress is reported
        self._told = Told(spec.program.ranks)
        self._recovery = Recovery(self._loop.time(), platform.timeouts)
        self._cpu_s = 0.0
        self._looked = True  # the hypervisor answered the last `look`
        self._attaching: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._late: DriverEvent | None = None  # an end that was reported while it was leaving
        self.created = False  # it has a domain here: earlier events belong to a previous domain of that name
        self.leaving = False  # a save, a migration or a stop explains that the domain stops

    # --- its domain

    async def appear(self) -> None:
        """Take over the running or paused domain."""
        await self._find()
        if self._share is not None:
            await self._share.take()

    async def _find(self) -> None:
        self.created = True
        await self._cap.find()

    async def take_over(self, *, works: bool) -> None:
        """Take over the domain of an earlier agent, with the cap in force."""
        await self.appear()
        self._cap.wanted_cores = await self._cap.in_force()
        self.state = State.RUNNING if works else State.HELD
        if works:
            self.attach_beside()

    async def on_domain(self, function: Callable[[libvirt.virDomain], T], deadline_s: float | None = None) -> T:
        """Run `function(domain)` in a thread; raises `DriverError`."""
        return await self._hypervisor.on_domain(self.name, deadline_s or self._timeouts.call_s, function)

    async def attach(self, deadline_s: float) -> None:
        """Open the control channel and read the frames that the guest has sent meanwhile."""
        xml = str(await self.on_domain(lambda domain: domain.XMLDesc()))
        self._progress_due = True
        await self._channel.attach(self._hypervisor.file(self._platform.control_path(xml)), deadline_s)
        self._recovery.expected(self._loop.time())

    async def boot(self) -> None:
        """Attach to a domain that was just created and give it its task."""
        await self._find()
        if self._share is not None:
            await self._share.boot()
        await self.attach(self._timeouts.boot_s)
        await self._order("task", task_fields(self.spec))
        self.state = State.WAITING

    async def made(self) -> None:
        """Wait until the program has its memory, set the cap, and let it work."""
        self.state = State.STARTING
        try:
            async with asyncio.timeout(self._timeouts.memory_s):
                await asyncio.shield(self._ready)
        except TimeoutError:
            late = f"no memory after {self._timeouts.memory_s:g} s"
            raise DriverError(f"guest {self.name}: {late}{self.words()}") from None
        self.state = State.RUNNING
        await self._cap.apply()
        if self._share is not None:
            await self._share.take()
        self._progress_due = True
        await self._order("go", [])

    async def run(self, argv: Sequence[str], listen: Callable[[str], None] | None = None) -> int:
        """Start a process in the guest; `listen` gets its first lines. Returns its process id in the guest."""
        self._output.listen = listen or self._output.listen
        self._exits.starts()
        pid = (await self._order("run", [("arg", word) for word in argv])).count("pid")
        self._exits.started(pid)
        return pid

    async def join(self, program: str, session: str) -> None:
        """Start its rank of an MPI job; return when that has its memory."""
        if not self.rank.joined:
            self._must_be(State.WAITING)
        await self.rank.start(program, session)
        await self.made()

    async def exit_of(self, pid: int) -> int:
        """Wait for a process of `run` to end and return its status."""
        return await self._exits.of(pid)

    async def _order(self, kind: str, fields: Sequence[tuple[str, object]]) -> Frame:
        return await self._channel.order(kind, fields, self._timeouts.order_s)

    # --- its cap

    async def set_cap(self, cap_cores: float) -> float:
        """Set the cap, or keep it for later; return the one in force in the kernel."""
        async with self._end_told():
            self._cap.wanted_cores = cap_cores
            return await (self._cap.apply() if self.state in (State.RUNNING, State.HELD) else self._cap.in_force())

    async def set_share(self, share_cores: float) -> float:
        """Set the share; return it as read back."""
        async with self._end_told():
            if self._share is None:
                raise DriverError(f"guest {self.name} has no share: it is capped")
            return await self._share.set(share_cores)

    @property
    def vcpus(self) -> Vcpus:
        """Its virtual CPUs; raises `DriverError` before its domain is there."""
        return self._cap.known_vcpus()

    @property
    def cap_cores(self) -> float:
        """The cap that it should have."""
        return self._cap.wanted_cores

    # --- hold, release

    async def hold(self) -> None:
        """Suspend it."""
        async with self._end_told():
            self._must_be(State.RUNNING, State.HELD)
            await self.on_domain(suspend)
            self._must_be(State.RUNNING, State.HELD)  # it may have ended just before
            self.state = State.HELD

    async def release(self) -> None:
        """Let it continue; frames sent meanwhile are read in the background."""
        self._must_be(State.RUNNING, State.HELD)
        if self.state is State.HELD:
            await self.on_domain(resume)
            self.state = State.RUNNING
            self._recovery.expected(self._loop.time())
        if not self._channel.attached:
            self.attach_beside()

    def attach_beside(self) -> None:
        """Open the control channel in the background."""
        if self._attaching is None or self._attaching.done():
            self._attaching = self._loop.create_task(self._attach_beside(), name=f"attach to {self.name}")

    async def _attach_beside(self) -> None:
        try:
            await self.attach(self._timeouts.order_s)
        except UnansweredError as error:
            _log.warning("%s", error)  # no failure yet: `Recovery` judges the guest by whether its machine works
        except DriverError as error:
            self.fail(str(error))

    def detach(self) -> None:
        """Close the host's end of the control channel."""
        if self._attaching is not None:
            self._attaching.cancel()
        self._channel.detach()
        self.rank.close()

    def _must_be(self, *states: State) -> None:
        if self.state not in states:
            raise DriverError(f"guest {self.name} is {self.state}: expected {' or '.join(states)}")

    # --- departures

    async def save(self, image: Path) -> float:
        """Save the held guest to `image`, after which it is gone here; returns the seconds that the hypervisor took.

        After a failure the guest is still held, or ENDED if the hypervisor has lost it.
        """
        self._must_be(State.HELD)
        self.state, self.leaving = State.SAVING, True
        begin_s = self._loop.time()
        saving = asyncio.ensure_future(
            self.on_domain(lambda domain: self._platform.save(domain, image), self._timeouts.memory_s)
        )
        try:
            await asyncio.shield(saving)
        except BaseException:
            if not await asyncio.shield(self._give_up_save(saving, image)):
                raise
        elapsed_s = self._loop.time() - begin_s
        await self.departed()
        return elapsed_s

    async def _give_up_save(self, saving: asyncio.Future[None], image: Path) -> bool:
        """Abort a save; return whether the image was written despite that. Else the guest is held, if it is here."""
        if await self.abort(saving, self._timeouts.call_s) and not saving.cancelled() and saving.exception() is None:
            return True
        if await self._come_back(State.HELD):
            with contextlib.suppress(DriverError):
                await self.on_domain(suspend)  # it may have to run to be saved
            await asyncio.to_thread(image.unlink, missing_ok=True)
            return False
        return await is_image_of(self._hypervisor, self._platform, image, self.name)

    async def abort(self, job: asyncio.Future[None], within_s: float) -> bool:
        """Abort the hypervisor's job on the domain, repeatedly until the job has ended; return whether it has.

        The hypervisor refuses an abort at the very beginning of a job and shortly before its end.
        """
        ends_s = self._loop.time() + within_s
        while not job.done() and self._loop.time() < ends_s:
            with contextlib.suppress(DriverError):
                await self.on_domain(lambda domain: domain.abortJob(), _ABORT_CALL_S)
            await asyncio.wait((job,), timeout=_ABORT_EVERY_S)
        return job.done()

    def depart(self) -> None:
        """Note that a migration begins."""
        self._must_be(State.RUNNING)
        self.state, self.leaving = State.MIGRATING, True

    async def return_from_departure(self) -> bool:
        """The migration failed: return whether the guest is here; if so, it continues."""
        return await self._come_back(State.RUNNING)

    async def _come_back(self, state: State) -> bool:
        if not await is_still_here(self._hypervisor, self.name, self._timeouts.call_s, self._timeouts.memory_s):
            await self.departed()
            return False
        self.state, self.leaving = state, False
        self._recovery.expected(self._loop.time())
        if self._late is not None:
            self._end(self._late)
        elif state is State.RUNNING and not self._channel.attached:
            self.attach_beside()
        return True

    async def departed(self) -> None:
        """The guest is not here any more; remove its files."""
        self.state = State.ENDED
        self.detach()
        self._output.remove_console()

    # --- its frames

    def _hear(self, frame: Frame) -> None:
        try:
            if frame.kind == "pmi":
                self.rank.hear(frame)
            else:
                self._understand(frame)
        except WireError as error:
            self.fail(f"protocol violation: {error}")

    def _understand(self, frame: Frame) -> None:
        match frame.kind:
            case "beat" | "progress":
                now_ns = time.monotonic_ns()
                self._told.take(frame, now_ns)
                self._heal(now_ns)
                if frame.kind == "progress" and self._progress_due:  # each is an event, a guest may send any number
                    self._progress_due = False
                    self._tell(DriverEvent(self.name, "progress", now_ns, {"units": self._told.units}))
            case "ready":
                if not self._ready.done():
                    self._ready.set_result(None)
            case "out":
                self._output.take(frame.text("text"))
            case "exit":
                self._exited(frame.count("pid"), frame.count("status"))
            case "done":
                self._done(frame)
            case "error":
                self.fail(frame.text("message"))
            case _:
                pass  # `hello`, and frames of later versions

    def _heal(self, now_ns: int) -> None:
        attempts = self._recovery.attempts
        silent_s = self._recovery.told(self._loop.time(), self._told.units)
        if silent_s:
            self._tell(DriverEvent(self.name, "healed", now_ns, {"silent_s": silent_s, "attachments": attempts}))

    def _done(self, frame: Frame) -> None:
        detail: dict[str, object] = {
            "units": frame.count("units"), "checksum": frame.text("checksum"), "messages": frame.count("messages"),
            "compute_s": frame.number("compute_s"), "comm_s": frame.number("comm_s"),
        }  # fmt: skip
        self._told.take(frame, time.monotonic_ns())
        if (steps := self._told.steps) is not None:  # the longest also covers iterations that no sample has reported
            detail |= {"steps": steps.steps, "longest_s": steps.longest_s}
        self._end(DriverEvent(self.name, "done", time.monotonic_ns(), detail))

    def _exited(self, pid: int, status: int) -> None:
        self._exits.ended(pid, status)
        if status and self.state is not State.ENDED:
            self.fail(f"a process in it ended with status {status}")

    # --- its end

    @contextlib.asynccontextmanager
    async def _end_told(self) -> AsyncIterator[None]:
        """Context of an order that may come too late: it fails only after the guest's end was reported."""
        try:
            if self.state is State.ENDED:
                raise DriverError(f"guest {self.name} has ended")
            yield
        except DriverError:
            if self._ending is not None:
                await asyncio.wait((self._ending,))
            raise

    def fail(self, reason: str, code: FailureCode = FailureCode.GUEST_FAILED) -> None:
        """Mark the guest as unable to continue."""
        reason = f"{reason}{self.words()}"
        if not self._ready.done():
            self._ready.set_exception(DriverError(f"guest {self.name}: {reason}"))
            self._ready.exception()  # possibly no task awaits it
        if self.state not in (State.BOOTING, State.STARTING):  # else the task that awaits `_ready` gets the error
            self._end(DriverEvent(self.name, "failed", time.monotonic_ns(), {"reason": reason, "code": code.value}))

    def _end(self, driver_event: DriverEvent) -> None:
        if self.state is State.ENDED:
            return
        if self.leaving:  # its new node will report, unless it stays
            self._late = driver_event
            return
        self.state = State.ENDED
        self._ending = self._loop.create_task(self._end_by_itself(driver_event), name=f"end of {self.name}")

    async def _end_by_itself(self, driver_event: DriverEvent) -> None:
        self._note_end(self.spec, driver_event)
        with contextlib.suppress(DriverError):
            await self.destroy()
        self._forget(self)
        self._tell(driver_event)

    async def destroy(self) -> None:
        """End the domain and everything that belongs to it; raises `DriverError` if it still exists afterwards."""
        self.leaving = True
        self.state = State.ENDED
        self.detach()
        if not self._ready.done():
            self._ready.set_exception(DriverError(f"guest {self.name} was destroyed"))
            self._ready.exception()
        await self.vanish()

    async def vanish(self) -> None:
        """Make sure that the domain is gone, with its console's file."""
        domain = await self._hypervisor.find_own(self.name, self._timeouts.call_s)
        if domain is not None:
            with contextlib.suppress(DriverError):  # it may end by itself just now; checked below
                await self.on_domain(lambda found: found.destroy())
            if await self._hypervisor.find(self.name, self._timeouts.call_s) is not None:
                raise DriverError(f"guest {self.name} is still there after it was destroyed")
        self._output.remove_console()

    def words(self) -> str:
        """Return the last lines of the guest's processes and of its console, for a message."""
        return self._output.words(self._channel.overheard)

    # --- its usage

    def sample(self, guessed_waits_s: tuple[float, ...] = ()) -> GuestSample:
        """Return its usage, with a guess of its waits; also check its cap, and detect a guest that fell silent."""
        rss_mib = 0.0
        cap_cores: float | None = None
        throttled_s: float | None = None
        if self._cap.vcpus is not None:
            with contextlib.suppress(OSError, DriverError, ValueError):
                seen = self._cap.vcpus.seen()
                rss_mib, throttled_s = seen.rss_mib, seen.throttled_s
                cap_cores = self._cap.usable_cores(seen.cap_cores) if self._looked else None
                self._cpu_s = max(self._cpu_s, seen.cpu_s)
                self._look_after(seen.cap_cores)
        return GuestSample(
            guest=self.name, state=self.state.value, cap_cores=cap_cores, wanted_cores=self.cap_cores,
            cpu_s=self._cpu_s, rss_mib=rss_mib, read_mib=0.0, written_mib=0.0, units_done=self._told.units,
            units_mono_ns=self._told.mono_ns, supersteps=self._told.sampled(), share_cores=self._seen_share(),
            waits_s=self._told.waits_s, guessed_waits_s=guessed_waits_s, throttled_s=throttled_s,
        )  # fmt: skip

    def _seen_share(self) -> float | None:
        """Return the share in force, and have it set again if it was changed from outside."""
        if self._share is None:
            return None
        found = self._share.in_force()
        self._share.look_after(found)
        return found

    async def look(self) -> None:
        """Refresh the values for `sample`."""
        if self._cap.vcpus is not None and self.state is not State.ENDED:
            looked = False
            with contextlib.suppress(OSError, DriverError, TimeoutError):
                async with asyncio.timeout(_LOOK_WITHIN_S):
                    await self._hypervisor.in_thread(self._cap.vcpus.look)
                    looked = True
            self._looked = looked

    def meter(self) -> Meter:
        """See `Meters.meter`."""
        vcpus = self._cap.known_vcpus()

        def read() -> Reading:
            if self.state is State.ENDED:
                raise DriverError(f"guest {self.name} has ended")
            try:
                return Reading(vcpus.cpu_s(), self._told.units)
            except (OSError, ValueError, IndexError) as error:
                raise DriverError(f"guest {self.name} has ended: {error}") from error

        return read

    def _look_after(self, found_cores: float | None) -> None:
        if self.state is not State.RUNNING:
            return
        self._cap.repair(found_cores)
        if self._attaching is not None and not self._attaching.done():
            return  # it has a deadline of its own
        match self._recovery.sample(self._loop.time(), self._cpu_s):
            case GiveUp(reason, code):
                self.fail(reason, code)
            case Reattach(silent_s):
                _log.warning("guest %s: nothing heard for %.0f s; attaching to it again", self.name, silent_s)
                self.attach_beside()
