"""Guests as processes: the task's program runs right on the node, under a CPU cap, with its memory really allocated."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import logging
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from node_agent.drivers.caps.probe import open_caps
from node_agent.drivers.caps.protocol import Caps
from node_agent.drivers.procs.child import Child, Log, ending
from node_agent.drivers.procs.environment import environment, program_argv
from node_agent.drivers.procs.guest import House, ProcessGuest
from node_agent.drivers.procs.job import join_job
from node_agent.drivers.procs.native import run_native
from node_agent.drivers.procs.records import ProcessRecords
from node_agent.drivers.protocol import (
    DriverError,
    DriverFacts,
    Happening,
    Meter,
    MigrationReport,
    NativeReport,
    NodeBudget,
    SaveReport,
    SuspectError,
    check_rank,
)
from node_agent.programs.catalogue import installed, unknown
from testbed.bus.messages import GuestSpec, ProgramSpec, RankKeys
from testbed.bus.migration import Destination
from testbed.bus.telemetry import GuestSample

FLOOR_MIB = 64  # a rank with numpy and MPI takes 40 to 49 MiB by machine
_GUEST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")
_log = logging.getLogger(__name__)


class ProcessDriver:
    """One guest = one program in a session of its own; the agent is the process manager of an MPI member's rank.

    Joins of the members of one job must run side by side: no rank is ready before all are. `caps` forces a mechanism
    (`cgroup2`, `cgroup1`, `duty`); by default DFRS_CAPS in the environment does, else the best that works is taken.
    """

    name = "process"

    def __init__(self, caps: str | None = None) -> None:
        self._forced_caps = caps or os.environ.get("DFRS_CAPS") or None
        self._guests: dict[str, ProcessGuest] = {}
        self._native: set[ProcessGuest] = set()  # ranks that are no guests
        self._programs: tuple[str, ...] = ()
        self._count = 0
        self._budget: NodeBudget | None = None
        self._caps: Caps | None = None
        self._records: ProcessRecords | None = None
        self._calibrations: set[Child] = set()
        self._tell: Callable[[Happening], None] = lambda _happening: None

    async def open(self, budget: NodeBudget, tell: Callable[[Happening], None]) -> DriverFacts:
        """See `Driver.open`."""
        budget.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        budget.image_dir.mkdir(parents=True, exist_ok=True)
        self._budget, self._tell = budget, tell
        self._records = ProcessRecords(budget.state_dir / "processes.json")
        if left := await self.sweep(budget):
            _log.warning("removed what an earlier agent left: %s", ", ".join(left))
        for socket in (*budget.state_dir.glob("*.sock"), *budget.state_dir.glob("*.pmi")):
            socket.unlink()
        self._caps = await self.open_caps(f"{budget.prefix}{budget.node}-{os.getpid()}")
        mpi = ("mpi",) if _has_mpi() else ()
        self._programs = installed()
        versions = {name: importlib.metadata.version(name) for name in ("numpy", *(("mpich", "mpi4py") if mpi else ()))}
        capabilities = ("start", "cap", f"cap:{self._caps.name}", "save", "checksums", "native", *mpi)
        return DriverFacts(capabilities, versions, FLOOR_MIB, programs=self._programs)

    async def sweep(self, budget: NodeBudget, *, dry_run: bool = False) -> list[str]:
        """See `Driver.sweep`."""
        records = ProcessRecords(budget.state_dir / "processes.json")
        return (await asyncio.to_thread(records.left if dry_run else records.kill_left)).words()

    async def open_caps(self, group: str) -> Caps:
        """Return what caps the guests, ready to use."""
        return await open_caps(group, self._forced_caps)

    @property
    def house(self) -> House | None:
        """What guests are put into, if it is anything."""
        return None

    async def close(self) -> None:
        """See `Driver.close`."""
        for child in self._calibrations:
            child.kill()
        there = (*self._guests.values(), *self._native)
        await asyncio.gather(*(guest.stop() for guest in there), return_exceptions=True)
        if self._caps is not None:
            await self._caps.close()
            self._caps = None
        if self._records is not None:
            self._records.remove()

    async def start(self, spec: GuestSpec, cap_cores: float, image: Path | None) -> None:
        """See `Driver.start`."""
        if not _GUEST_NAME.fullmatch(spec.guest):
            raise SuspectError(f"guest name {spec.guest!r}: expected letters, digits and '-', at most 63")
        if spec.guest in self._guests:
            raise DriverError(f"guest {spec.guest} is there already")
        if spec.program.name not in self._programs:
            raise DriverError(unknown(spec.program.name, self._programs))
        guest = self._guests[spec.guest] = self._new(spec, cap_cores, image, self._tell, self.house)
        try:
            await guest.listen()
            if spec.program.ranks == 1:
                await guest.enter(program_argv(), environment(guest.control))
                await guest.made()
        except BaseException:
            await asyncio.shield(guest.stop())
            raise

    def _new(
        self, spec: GuestSpec, cap_cores: float, image: Path | None, tell: Callable[[Happening], None],
        house: House | None = None,
    ) -> ProcessGuest:  # fmt: skip
        budget, caps, records = self._opened()
        self._count += 1
        return ProcessGuest(
            spec, cap_cores, image, budget.state_dir / self.socket_name(spec.guest),
            budget.state_dir / f"{spec.guest}.log", caps, records, tell, self._forget, house,
        )  # fmt: skip

    def socket_name(self, guest: str) -> str:
        """Return the file name of the next guest's control channel: short, as their paths must be."""
        del guest
        return f"{self._count}.sock"

    async def mpi_join(self, guest: str, session: str) -> None:
        """See `Driver.mpi_join`; all processes of a node are reached at the node's address."""
        member = self._get(guest)
        check_rank(member.spec)
        await join_job(member, session, self._opened()[0].address)

    async def mpi_pass(self, guest: str, session: str, number: int, keys: Sequence[RankKeys], *, last: bool) -> None:
        """See `Driver.mpi_pass`."""
        if guest in self._guests:
            self._guests[guest].pass_barrier(session, number, keys, last=last)

    async def set_cap(self, guest: str, cap_cores: float) -> float:
        """See `Driver.set_cap`."""
        return await self._get(guest).set_cap(cap_cores)

    async def hold(self, guest: str) -> int | None:
        """See `Driver.hold`."""
        return await self._get(guest).hold()

    async def release(self, guest: str) -> None:
        """See `Driver.release`."""
        await self._get(guest).release()

    async def save(self, guest: str, at: int | None, image: Path) -> SaveReport:
        """See `Driver.save`. The call returns when all members of the job are written: they end together."""
        return await self._get(guest).save(at, image)

    async def migrate(self, guest: str, to: Destination, budget_s: float, no_progress_s: float) -> MigrationReport:
        """See `Driver.migrate`; raises `SuspectError`: it has not the capability `live`, so nobody honest asks."""
        del to, budget_s, no_progress_s
        raise SuspectError(f"guest {guest} is a tree of processes, which cannot migrate live")

    async def adopt(self, spec: GuestSpec, cap_cores: float) -> None:
        """See `Driver.adopt`; raises `SuspectError`: it has not the capability `live`, so nobody honest asks."""
        del cap_cores
        raise SuspectError(f"guest {spec.guest} is a tree of processes, which cannot migrate live")

    async def stop(self, guest: str) -> None:
        """See `Driver.stop`."""
        if guest in self._guests:
            await self._guests[guest].stop()

    async def calibrate(self, cpu_s: float) -> float:
        """See `Driver.calibrate`; in a process of its own, uncapped."""
        budget = self._opened()[0]
        printed = Log(budget.state_dir / "calibrate.log")
        child = Child(program_argv("calibrate", f"{cpu_s:g}"), environment(), budget.state_dir, printed.write)
        self._calibrations.add(child)
        try:
            code = await asyncio.shield(child.exited)
        finally:
            self._calibrations.discard(child)
            child.kill()
        with contextlib.suppress(ValueError):
            if code == 0:
                return float(printed.tail(1))
        raise DriverError(f"calibration: {ending(code)}; it printed: {printed.tail()}")

    def meter(self, guest: str) -> Meter:
        """See `Driver.meter`."""
        return self._get(guest).meter()

    async def native(self, program: ProgramSpec, seconds: float, cap_cores: float) -> NativeReport:
        """See `Driver.native`."""
        if program.name not in self._programs:
            raise DriverError(unknown(program.name, self._programs))

        def make(spec: GuestSpec, cap_cores: float, tell: Callable[[Happening], None]) -> ProcessGuest:
            rank = self._new(spec, cap_cores, None, tell)
            self._native.add(rank)
            rank.gone.add_done_callback(lambda _gone: self._native.discard(rank))
            return rank

        address = self._opened()[0].address
        return await run_native(program, seconds, cap_cores, f"native-{self._count}", make, address)

    async def refresh(self) -> None:
        """See `Driver.refresh`: files tell it at once."""

    def sample(self) -> list[GuestSample]:
        """See `Driver.sample`."""
        return [guest.sample() for guest in self._guests.values()]

    def _opened(self) -> tuple[NodeBudget, Caps, ProcessRecords]:
        if self._budget is None or self._caps is None or self._records is None:
            raise DriverError("the driver is not open")
        return self._budget, self._caps, self._records

    def _get(self, guest: str) -> ProcessGuest:
        if guest not in self._guests:
            raise DriverError(f"guest {guest} is not here; here are: {', '.join(self._guests) or 'none'}")
        return self._guests[guest]

    def _forget(self, guest: ProcessGuest) -> None:
        if self._guests.get(guest.spec.guest) is guest:
            del self._guests[guest.spec.guest]


def _has_mpi() -> bool:
    """Whether this environment has MPICH, and the module by which programs use it; MPI is not started by that."""
    return all(importlib.util.find_spec(name) is not None for name in ("mpi4py",)) and bool(
        list(importlib.metadata.distributions(name="mpich"))
    )
