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
from node_agent.drivers.caps.probe import open_caps
from node_agent.drivers.caps.protocol import Caps
from node_agent.drivers.procs.environment import environment, program_argv
from node_agent.drivers.procs.guest import Enclosure, ProcessGuest
from node_agent.drivers.procs.job import join_job
from node_agent.drivers.procs.native import run_native
from node_agent.drivers.procs.records import ProcessRecords
from node_agent.drivers.protocol import (
    Driver,
    DriverError,
    DriverEvent,
    DriverFacts,
    ImageKind,
    Meter,
    NativeReport,
    NodeBudget,
    SaveReport,
    check_name,
    check_rank,
)
from node_agent.programs.catalogue import installed, unknown
from testbed.bus.messages import GuestSpec, ProgramSpec, RankKeys
from testbed.bus.telemetry import GuestSample

FLOOR_MIB = 64  # a rank with numpy and MPI takes 40 to 49 MiB by machine
_log = logging.getLogger(__name__)


class ProcessDriver(Driver):
    """One guest = one program in a session of its own; the agent is the process manager of an MPI member's rank.

    Joins of the members of one job must run concurrently: no rank is ready before all are. `caps` forces a mechanism
    (`cgroup2`, `cgroup1`, `duty`); by default DFRS_CAPS in the environment does, else the best that works is taken.
    """

    name = "process"
    traits = PROCESS.traits

    def __init__(self, caps: str | None = None) -> None:
        self._forced_caps = caps or os.environ.get("DFRS_CAPS") or None
        self._guests: dict[str, ProcessGuest] = {}
        self._native: set[ProcessGuest] = set()  # ranks outside guests
        self._programs: tuple[str, ...] = ()
        self._count = 0
        self._budget: NodeBudget | None = None
        self._caps: Caps | None = None
        self._records: ProcessRecords | None = None
        self._tell: Callable[[DriverEvent], None] = lambda _driver_event: None

    async def open(self, budget: NodeBudget, tell: Callable[[DriverEvent], None]) -> DriverFacts:
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
        mpi = _has_mpi()
        self._programs = installed()
        versions = {name: importlib.metadata.version(name) for name in ("numpy", *(("mpich", "mpi4py") if mpi else ()))}
        lacks = {} if mpi else {"mpi": "mpich and mpi4py are not installed"}
        return DriverFacts((f"cap:{self._caps.name}", "checksums"), versions, FLOOR_MIB, self._programs, lacks)

    @property
    def images(self) -> ImageKind:
        """See `Saves.images`: programs write their own state, and check it when they read it."""
        return ImageKind("program")

    async def sweep(self, budget: NodeBudget, *, dry_run: bool = False) -> list[str]:
        """See `Driver.sweep`."""
        records = ProcessRecords(budget.state_dir / "processes.json")
        return (await asyncio.to_thread(records.left if dry_run else records.kill_left)).words()

    async def open_caps(self, group: str) -> Caps:
        """Return the mechanism that caps the guests, ready to use."""
        return await open_caps(group, self._forced_caps)

    @property
    def enclosure(self) -> Enclosure | None:
        """The function that starts guests in an enclosure such as a container, or None."""
        return None

    async def close(self) -> None:
        """See `Driver.close`."""
        there = (*self._guests.values(), *self._native)
        await asyncio.gather(*(guest.stop() for guest in there), return_exceptions=True)
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
        guest = self._guests[spec.guest] = self._new(spec, cap_cores, image, self._tell, self.enclosure)
        try:
            await guest.listen()
            if spec.program.ranks == 1:
                await guest.enter(program_argv(), environment(guest.control))
                await guest.made()
        except BaseException:
            await asyncio.shield(guest.stop())
            raise

    def _new(
        self, spec: GuestSpec, cap_cores: float, image: Path | None, tell: Callable[[DriverEvent], None],
        enclosure: Enclosure | None = None,
    ) -> ProcessGuest:  # fmt: skip
        budget, caps, records = self._opened()
        self._count += 1
        return ProcessGuest(
            spec, cap_cores, image, budget.state_dir / self.socket_name(spec.guest),
            budget.state_dir / f"{spec.guest}.log", caps, records, tell, self._forget, enclosure,
        )  # fmt: skip

    def socket_name(self, guest: str) -> str:
        """Return the file name of the next guest's control channel: short, as their paths must be."""
        del guest
        return f"{self._count}.sock"

    async def mpi_join(self, guest: str, session: str) -> None:
        """See `Joins.mpi_join`; all processes of a node are reachable at the node's address."""
        member = self._get(guest)
        check_rank(member.spec)
        await join_job(member, session, self._opened()[0].address)

    async def mpi_pass(self, guest: str, session: str, number: int, keys: Sequence[RankKeys], *, last: bool) -> None:
        """See `Joins.mpi_pass`."""
        if guest in self._guests:
            self._guests[guest].pass_barrier(session, number, keys, last=last)

    async def set_cap(self, guest: str, cap_cores: float) -> float:
        """See `Driver.set_cap`."""
        return await self._get(guest).set_cap(cap_cores)

    async def hold(self, guest: str) -> int | None:
        """See `Saves.hold`."""
        return await self._get(guest).hold()

    async def release(self, guest: str) -> None:
        """See `Saves.release`."""
        await self._get(guest).release()

    async def save(self, guest: str, at: int | None, image: Path) -> SaveReport:
        """See `Saves.save`. The call returns when all members of the job are written, as they end together."""
        return await self._get(guest).save(at, image)

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
    """Whether this environment has MPICH and the module by which programs use it; the check does not start MPI."""
    return all(importlib.util.find_spec(name) is not None for name in ("mpi4py",)) and bool(
        list(importlib.metadata.distributions(name="mpich"))
    )
