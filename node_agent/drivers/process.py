"""Guests as processes: the task's program runs right on the node, under a CPU cap, with its memory really allocated."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from node_agent.drivers.builtin import PROCESS
from node_agent.drivers.caps.guest_share import GuestShare
from node_agent.drivers.caps.probe import open_caps
from node_agent.drivers.caps.protocol import Caps, Weights
from node_agent.drivers.procs.child import Running
from node_agent.drivers.procs.enclosure import Enclosure
from node_agent.drivers.procs.environment import environment, program_argv
from node_agent.drivers.procs.guest import ProcessGuest
from node_agent.drivers.procs.guest_record import GuestRecord, decode_record
from node_agent.drivers.procs.job import join_job
from node_agent.drivers.procs.keeping import KEEP_S, Keeping, Kept, Left
from node_agent.drivers.procs.native import run_native
from node_agent.drivers.procs.records import RECORDS, ProcessRecords
from node_agent.drivers.procs.waits import WaitsLayer, why_not
from node_agent.drivers.protocol import (
    Driver,
    DriverError,
    DriverEvent,
    DriverFacts,
    ImageKind,
    Meter,
    NativeReport,
    NodeBudget,
    OnSaved,
    SaveReport,
    check_name,
    check_rank,
)
from node_agent.programs.catalogue import installed, unknown
from node_agent.programs.image import ImageError, ImageReader
from testbed.bus.messages import GuestSpec, ProgramSpec, RankKeys
from testbed.bus.telemetry import GuestSample

FLOOR_MIB = 64  # a rank with numpy and MPI takes 40 to 49 MiB by machine
_log = logging.getLogger(__name__)


class ProcessDriver(Driver):
    """One guest = one program in a session of its own; the agent is the process manager of an MPI member's rank.

    Joins of the members of one job must run concurrently: no rank is ready before all are. `caps` forces a mechanism
    (`cgroup2`, `cgroup1`, `duty`), else the variable DFRS_CAPS does; by default the best that works is taken.
    """

    name = "process"
    traits = PROCESS.traits

    keeps = True  # its guests outlive a killed agent

    def __init__(self, caps: str | None = None) -> None:
        self._forced_caps = caps or os.environ.get("DFRS_CAPS") or None
        self._keeping: Keeping | None = None
        self._ended: dict[str, list[Kept]] = {}  # whose ends the agent has not settled yet
        self._taken_over: list[ProcessGuest] = []
        self.keep_s = KEEP_S
        self.on_saved: OnSaved = _ignore
        self._guests: dict[str, ProcessGuest] = {}
        self._native: set[ProcessGuest] = set()  # ranks outside guests
        self._programs: tuple[str, ...] = ()
        self._count = 0
        self._budget: NodeBudget | None = None
        self._caps: Caps | None = None
        self._records: ProcessRecords | None = None
        self._waits: WaitsLayer | None = None
        self._tell: Callable[[DriverEvent], None] = lambda _driver_event: None

    async def open(self, budget: NodeBudget, tell: Callable[[DriverEvent], None]) -> DriverFacts:
        """See `Driver.open`."""
        budget.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        budget.image_dir.mkdir(parents=True, exist_ok=True)
        self._budget, self._tell = budget, tell
        self._records = ProcessRecords(budget.state_dir / RECORDS)
        self._keeping = await Keeping.open(budget.state_dir, self.keep_s) if self.keeps else None
        found = [] if self._keeping is None else readable(self._keeping)
        swept = await asyncio.to_thread(self._records.kill_left, self._kept_pids(found))
        if left := swept.words():
            _log.warning("removed what an earlier agent left: %s", ", ".join(left))
        await self.clear(found)
        owner = os.getpid() if self._keeping is None else self._keeping.pid
        if self._keeping is not None:
            self._records.add(owner)
        self._caps = await self.open_caps(f"{budget.prefix}{budget.node}-{owner}")
        for record, each in found:
            await self._adopt(record, each)
        mpi = _has_mpi()
        self._programs = installed()
        versions = {name: importlib.metadata.version(name) for name in ("numpy", *(("mpich", "mpi4py") if mpi else ()))}
        lacks = {} if mpi else {"mpi": "mpich and mpi4py are not installed"}
        if isinstance(self.weights, str):
            lacks["shares"] = self.weights
        fences = ("fences",) if self._keeping is not None else ()
        if mpi and not why_not():
            self._waits = WaitsLayer(budget.state_dir)
        waits = () if self._waits is None else ("waits",)
        return DriverFacts(
            (f"cap:{self._caps.name}", "checksums", *fences, *waits), versions, FLOOR_MIB, self._programs, lacks
        )

    async def clear(self, found: Sequence[tuple[GuestRecord, Left]]) -> None:
        """Remove the files of an earlier agent, except those that its remaining guests need."""
        del found  # their sockets are open already
        folder = self._there().state_dir
        for socket in (*folder.glob("*.sock"), *folder.glob("*.pmi")):
            socket.unlink()

    @property
    def images(self) -> ImageKind:
        """See `Saves.images`: programs write their own state, and check it when they read it."""
        return ImageKind("program")

    async def sweep(self, budget: NodeBudget, *, dry_run: bool = False) -> list[str]:
        """See `Driver.sweep`."""
        records = ProcessRecords(budget.state_dir / RECORDS)
        return (await asyncio.to_thread(records.left if dry_run else records.kill_left)).words()

    async def open_caps(self, group: str) -> Caps:
        """Return the mechanism that caps the guests, ready to use."""
        return await open_caps(group, self._forced_caps)

    @property
    def weights(self) -> Weights | str:
        """The mechanism that sets the shares of guests, or why there is none."""
        caps = self._opened()[1]
        return caps if isinstance(caps, Weights) else f"caps by {caps.name} have no weights"

    @property
    def enclosure(self) -> Enclosure | None:
        """The function that starts guests in an enclosure such as a container, or None."""
        return None

    async def close(self) -> None:
        """See `Driver.close`."""
        there = (*self._guests.values(), *self._native)
        await asyncio.gather(*(guest.stop() for guest in there), return_exceptions=True)
        if self._keeping is not None:
            await self._keeping.close()
            self._keeping = None
            self._ended.clear()
        if self._caps is not None:
            await self._caps.close()
            self._caps = None
        if self._records is not None:
            self._records.remove()

    async def start(self, spec: GuestSpec, cap_cores: float) -> None:
        """See `Driver.start`."""
        await self._make(spec, cap_cores, None)

    async def restore(self, spec: GuestSpec, cap_cores: float, image: Path) -> None:
        """See `Saves.restore`."""
        await self._make(spec, cap_cores, image)

    async def _make(self, spec: GuestSpec, cap_cores: float, image: Path | None) -> None:
        check_name(spec.guest)
        if spec.guest in self._guests:
            raise DriverError(f"guest {spec.guest} is there already")
        if spec.program.name not in self._programs:
            raise DriverError(unknown(spec.program.name, self._programs))
        kept = None if self._keeping is None else self._keeping.new(spec.guest)
        guest = self._guests[spec.guest] = self._new(spec, cap_cores, image, self._tell, self.enclosure, kept)
        try:
            await guest.listen()
            guest.note()
            if spec.program.ranks == 1:
                await guest.enter(program_argv(), environment(guest.control))
                await guest.made()
        except BaseException:
            await asyncio.shield(guest.stop())
            raise

    # --- guests that outlive an agent

    def taken_over(self) -> list[GuestSpec]:
        """See `Outlives.taken_over`."""
        return [guest.spec for guest in self._taken_over if guest.unclaimed is None]

    def settled(self, guest: str) -> None:
        """See `Outlives.settled`."""
        for kept in self._ended.pop(guest, ()):
            kept.drop()

    def _kept_pids(self, found: Sequence[tuple[GuestRecord, Left]]) -> set[int]:
        """Return the processes of the keeper of an earlier agent."""
        pids = {pid for record, left in found for pid in (left.pid, record.pid) if pid}
        return pids if self._keeping is None else pids | {self._keeping.pid}

    async def _adopt(self, record: GuestRecord, left: Left) -> None:
        """Take over a guest of an earlier agent; a guest whose start had not returned is destroyed."""
        if self._keeping is None:
            return
        image = None if record.image is None else Path(record.image)
        kept = self._keeping.adopt(left)
        guest = self._new(record.spec, record.cap_cores, image, self._tell, kept=kept)
        self._guests[record.spec.guest] = guest
        running = await self.running(guest, record, left)
        await guest.adopt(record, left, running)
        if record.parked or (not record.made and (running is not None or record.spec.program.ranks == 1)):
            await guest.stop()
            return
        self._taken_over.append(guest)

    async def running(self, guest: ProcessGuest, record: GuestRecord, left: Left) -> Running | None:
        """Return the program of a guest that an earlier agent left, None if it was not started."""
        del record
        return guest.kept if left.pid else None

    def _new(
        self, spec: GuestSpec, cap_cores: float, image: Path | None, tell: Callable[[DriverEvent], None],
        enclosure: Enclosure | None = None, kept: Kept | None = None,
    ) -> ProcessGuest:  # fmt: skip
        budget, caps, records = self._opened()
        self._count += 1
        share = None
        if spec.share_cores is not None:
            weights = self.weights
            known = None if isinstance(weights, str) else weights
            share = GuestShare(spec.guest, spec.share_cores, budget.cpus, known, tell)
        return ProcessGuest(
            spec, cap_cores, image, budget.state_dir / self.socket_name(spec.guest),
            budget.state_dir / f"{spec.guest}.log", caps, records, tell, self._forget, enclosure, kept, share,
        )  # fmt: skip

    def socket_name(self, guest: str) -> str:
        """Return the file name of the next guest's control channel: short, as paths of sockets are limited."""
        del guest
        return f"{self._count}.sock"

    async def mpi_join(self, guest: str, session: str) -> None:
        """See `Joins.mpi_join`; all processes of a node are reachable at the node's address."""
        member = self._get(guest)
        check_rank(member.spec)
        waits = (
            {}
            if self._waits is None or (member.spec.share_cores is None and not member.spec.waits)
            else await self._waits.environment(guest)
        )
        await join_job(member, session, self._opened()[0].address, waits)

    async def mpi_pass(self, guest: str, session: str, number: int, keys: Sequence[RankKeys], *, last: bool) -> None:
        """See `Joins.mpi_pass`."""
        if guest in self._guests:
            self._guests[guest].rank.pass_barrier(session, number, keys, last=last)

    async def set_cap(self, guest: str, cap_cores: float) -> float:
        """See `Driver.set_cap`."""
        return await self._get(guest).set_cap(cap_cores)

    async def set_share(self, guest: str, share_cores: float) -> float:
        """See `Shares.set_share`."""
        return await self._get(guest).set_share(share_cores)

    async def hold(self, guest: str) -> int | None:
        """See `Saves.hold`."""
        return await self._get(guest).hold()

    async def release(self, guest: str) -> None:
        """See `Saves.release`."""
        await self._get(guest).release()

    async def save(self, guest: str, at: int | None, image: Path) -> SaveReport:
        """See `Saves.save`. The call returns when all members of the job are written, as they end together."""
        return await self._get(guest).save(at, image)

    async def finished_save(self, guest: str, at: int | None, image: Path) -> SaveReport | None:
        """See `FindsSaves.finished_save`: a program gives an image its name once it is whole and durable."""
        return None if guest in self._guests else await asyncio.to_thread(_written, at, image)

    async def stop(self, guest: str) -> None:
        """See `Driver.stop`."""
        if guest in self._guests:
            await self._guests[guest].stop()

    def meter(self, guest: str) -> Meter:
        """See `Meters.meter`."""
        return self._get(guest).meter()

    async def native(self, program: ProgramSpec, seconds: float, cap_cores: float) -> NativeReport:
        """See `Natives.native`."""
        if program.name not in self._programs:
            raise DriverError(unknown(program.name, self._programs))

        def make(spec: GuestSpec, cap_cores: float, tell: Callable[[DriverEvent], None]) -> ProcessGuest:
            rank = self._new(spec, cap_cores, None, tell)
            self._native.add(rank)
            rank.gone.add_done_callback(lambda _gone: self._native.discard(rank))
            return rank

        address = self._opened()[0].address
        return await run_native(program, seconds, cap_cores, f"native-{self._count}", make, address)

    def sample(self) -> list[GuestSample]:
        """See `Driver.sample`."""
        return [guest.sample() for guest in self._guests.values()]

    def _opened(self) -> tuple[NodeBudget, Caps, ProcessRecords]:
        if self._caps is None or self._records is None:
            raise DriverError("the driver is not open")
        return self._there(), self._caps, self._records

    def _there(self) -> NodeBudget:
        if self._budget is None:
            raise DriverError("the driver is not open")
        return self._budget

    def _get(self, guest: str) -> ProcessGuest:
        if guest not in self._guests:
            raise DriverError(f"guest {guest} is not here; here are: {', '.join(self._guests) or 'none'}")
        return self._guests[guest]

    def _forget(self, guest: ProcessGuest) -> None:
        if self._guests.get(guest.spec.guest) is guest:
            del self._guests[guest.spec.guest]
            if guest.kept is not None:
                self._ended.setdefault(guest.spec.guest, []).append(guest.kept)
            if guest.unclaimed is not None:
                self.on_saved(guest.spec.guest, *guest.unclaimed)


def _ignore(_guest: str, _at: int | None, _image: Path, _report: SaveReport) -> None:
    """Default of `on_saved`: without an agent no image is noted."""


def readable(keeping: Keeping) -> list[tuple[GuestRecord, Left]]:
    """Return the guests that an earlier agent left, with their records; those of another version are destroyed."""
    found = []
    for left in keeping.left:
        try:
            found.append((decode_record(left.record), left))
        except DriverError as error:
            _log.warning("%s is destroyed: %s", left.key, error)
            left.close()
            keeping.adopt(left).drop()
    return found


def _has_mpi() -> bool:
    """Whether this environment has MPICH and the module by which programs use it; the check does not start MPI."""
    return all(importlib.util.find_spec(name) is not None for name in ("mpi4py",)) and bool(
        list(importlib.metadata.distributions(name="mpich"))
    )


def _written(at: int | None, image: Path) -> SaveReport | None:
    """Return the size and the digest of the image that a program wrote at iteration `at`, None if it is another one."""
    try:
        size = image.stat().st_size
        reader = ImageReader(image)
        digest = reader.check()
    except (OSError, ImageError):
        return None
    return SaveReport(size, digest, 0.0, 0.0, 0.0) if at in (None, reader.header.get("iteration")) else None
