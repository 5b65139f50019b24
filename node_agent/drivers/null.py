"""A driver without real guests: they are arithmetic on the event loop's clock. For dry runs and for tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import xxhash

from node_agent.drivers.builtin import NULL
from node_agent.drivers.protocol import (
    Driver,
    DriverError,
    DriverEvent,
    DriverFacts,
    ImageKind,
    Meter,
    MigrationReport,
    NativeReport,
    NodeBudget,
    Reading,
    SaveReport,
)
from node_agent.programs.catalogue import installed
from testbed.bus.messages import MPI_BARRIER, GuestSpec, ProgramSpec, RankKeys
from testbed.bus.migration import Destination
from testbed.bus.need_profile import WHOLE_PARTS, parts_of
from testbed.bus.telemetry import GuestSample
from testbed.errors import UserError

UNITS_PER_CORE_S = 10_000.0
MIGRATION_MIB_PER_S = 256.0
MIGRATION_DOWNTIME_S = 0.05
DIRTY_PERIOD_S = 4.0
EXTRAS = ("whole", "live", "dirty")


@dataclass(slots=True, eq=False)
class _Guest:
    spec: GuestSpec
    cap_cores: float
    units: float
    since_s: float
    runs: bool = False
    held: bool = False
    fresh: bool = False  # restored and not released since
    cpu_s: float = 0.0
    throttled_s: float = 0.0
    end: asyncio.TimerHandle | None = None
    passed: asyncio.Event = field(default_factory=asyncio.Event)  # the barrier at the start of MPI


class NullDriver(Driver):
    """Work advances at the cap; operations take no time, except live migrations; images hold a guest's progress.

    `extras` names additional capabilities, separated by commas: `whole`, `live`, `dirty`. Guests migrate between the
    drivers of one process at `MIGRATION_MIB_PER_S`, and stop for `MIGRATION_DOWNTIME_S` at the end. With `dirty` they
    write to all of their touched memory once per `DIRTY_PERIOD_S` at full speed, and migrate at the difference of both
    rates. The reported size of an image is the guest's touched memory, so that the amounts of a dry run are those of a
    real run. Files are written in the loop, because threads do not work with virtual time.
    """

    name = "null"
    traits = NULL.traits

    reachable: ClassVar[dict[tuple[int, str], NullDriver]] = {}  # open drivers with `live`, by event loop and URI

    def __init__(self, extras: str = "") -> None:
        self._extras = tuple(extra for extra in extras.split(",") if extra)
        for extra in self._extras:
            if extra not in EXTRAS:
                raise UserError(f"driver 'null': extras = {extras!r}: expected some of {', '.join(EXTRAS)}")
        self._uri = ""
        self._guests: dict[str, _Guest] = {}
        self._tell: Callable[[DriverEvent], None] = lambda _driver_event: None

    async def open(self, budget: NodeBudget, tell: Callable[[DriverEvent], None]) -> DriverFacts:
        """See `Driver.open`."""
        self._tell = tell
        if "live" in self._extras:
            self._uri = f"null://{budget.node}/system"
            self.reachable[self._place(self._uri)] = self
        lacks = {} if self._uri else {"live": "it has no option extras=live"}
        return DriverFacts(("fences",), programs=installed(), lacks=lacks)  # its guests end with it

    @property
    def images(self) -> ImageKind:
        """See `Saves.images`."""
        return ImageKind("null", whole="whole" in self._extras)

    async def sweep(self, budget: NodeBudget, *, dry_run: bool = False) -> list[str]:
        """See `Driver.sweep`: its guests end with it."""
        del budget, dry_run
        return []

    async def close(self) -> None:
        """See `Driver.close`."""
        if self._uri and self.reachable.get(self._place(self._uri)) is self:
            del self.reachable[self._place(self._uri)]
        for guest in list(self._guests):
            await self.stop(guest)

    async def start(self, spec: GuestSpec, cap_cores: float) -> None:
        """See `Driver.start`."""
        guest = self._put(spec, cap_cores, 0.0)
        guest.runs = spec.program.ranks == 1
        if guest.runs:
            self._begin(spec.guest)

    async def restore(self, spec: GuestSpec, cap_cores: float, image: Path) -> None:
        """See `Saves.restore`."""
        guest = self._put(spec, cap_cores, _read(image, spec.guest))
        guest.held = guest.fresh = self.images.whole
        guest.runs = guest.held or spec.program.ranks == 1
        if guest.runs and not guest.held:
            self._begin(spec.guest)

    def _put(self, spec: GuestSpec, cap_cores: float, units: float) -> _Guest:
        if spec.guest in self._guests:
            raise DriverError(f"guest {spec.guest} is there already")
        guest = self._guests[spec.guest] = _Guest(spec, cap_cores, units, self._now_s())
        return guest

    async def mpi_join(self, guest: str, session: str) -> None:
        """See `Joins.mpi_join`: there is one barrier, in which nothing is published."""
        found = self._get(guest)
        detail: dict[str, object] = {"session": session, "number": 1, "keys": {}}
        self._tell(DriverEvent(guest, MPI_BARRIER, int(self._now_s() * 1e9), detail))
        await found.passed.wait()
        if self._guests.get(guest) is not found:
            raise DriverError(f"guest {guest} was destroyed while its MPI job began")
        found.runs = True
        found.since_s = self._now_s()
        self._begin(guest)

    async def mpi_pass(self, guest: str, session: str, number: int, keys: Sequence[RankKeys], *, last: bool) -> None:
        """See `Joins.mpi_pass`."""
        del session, number, keys
        if last and guest in self._guests:
            self._guests[guest].passed.set()

    async def set_cap(self, guest: str, cap_cores: float) -> float:
        """See `Driver.set_cap`."""
        found = self._get(guest)
        self._advance(found)
        found.cap_cores = cap_cores
        self._arm(found)
        return _in_force(found)

    async def hold(self, guest: str) -> int | None:
        """See `Saves.hold`."""
        found = self._get(guest)
        if not found.runs:
            raise DriverError(f"guest {guest} has not joined its job")
        self._advance(found)
        found.held = True
        self._arm(found)
        return None if self.images.whole else int(found.units) // found.spec.program.units_per_iteration

    async def release(self, guest: str) -> None:
        """See `Saves.release`."""
        found = self._get(guest)
        self._advance(found)
        found.held = False
        if found.fresh:
            found.fresh = False
            self._begin(guest)
        self._arm(found)

    async def save(self, guest: str, at: int | None, image: Path) -> SaveReport:
        """See `Saves.save`."""
        found = self._get(guest)
        if not found.held:
            raise DriverError(f"guest {guest} is not held")
        program = found.spec.program
        if at is not None:
            found.units = max(found.units, min(float(program.work_units), float(at * program.units_per_iteration)))
        size = _touched_bytes(found.spec)
        content = json.dumps({"guest": guest, "units": found.units, "at": at, "bytes": size}).encode()
        try:
            image.write_bytes(content)  # noqa: ASYNC240  # a few bytes, see the class
        except OSError as error:
            raise DriverError(f"{image}: {error.strerror}") from error
        await self.stop(guest)
        return SaveReport(size, _digest(content), run_on_s=0.0, write_s=0.0, sync_s=0.0)

    async def finished_save(self, guest: str, at: int | None, image: Path) -> SaveReport | None:
        """See `FindsSaves.finished_save`."""
        try:
            content = image.read_bytes()  # noqa: ASYNC240  # a few bytes, see the class
            found = json.loads(content)
            if found["guest"] == guest and found["at"] == at and guest not in self._guests:
                return SaveReport(int(found["bytes"]), _digest(content), run_on_s=0.0, write_s=0.0, sync_s=0.0)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return None

    async def migrate(self, guest: str, to: Destination, budget_s: float, no_progress_s: float) -> MigrationReport:
        """See `Migrates.migrate`; the remaining amount falls unless the guest writes as fast as memory is sent."""
        found, there = self._get(guest), self.reachable.get(self._place(to.uri))
        if there is None or not self._uri:
            raise DriverError(f"guest {guest}: cannot migrate from {self._uri or 'here'} to {to.uri!r}: no driver")
        falling_mib_per_s = MIGRATION_MIB_PER_S - self._dirty_mib_per_s(found)
        if falling_mib_per_s <= 0.0:
            await asyncio.sleep(min(budget_s, no_progress_s))
            raise DriverError(f"guest {guest}: not migrated: it writes to its memory as fast as that is sent")
        elapsed_s = _touched_bytes(found.spec) / (falling_mib_per_s * (1 << 20)) + MIGRATION_DOWNTIME_S
        if elapsed_s > budget_s:
            await asyncio.sleep(budget_s)
            raise DriverError(f"guest {guest}: not migrated within {budget_s:g} s")
        await asyncio.sleep(elapsed_s - MIGRATION_DOWNTIME_S)
        if self._guests.get(guest) is not found:
            raise DriverError(f"guest {guest} ended while it migrated")
        self._advance(found)
        held, found.held = found.held, True
        self._arm(found)
        try:
            await asyncio.sleep(MIGRATION_DOWNTIME_S)
            if self.reachable.get(self._place(to.uri)) is not there:
                raise DriverError(f"guest {guest}: {to.uri} has closed")
        except BaseException:
            self._go_on(found, held=held)
            raise
        if self._guests.pop(guest, None) is not found:
            raise DriverError(f"guest {guest} was destroyed while it migrated")
        there._arrive(found, held=held)  # noqa: SLF001  # a driver of the same class
        return MigrationReport(_touched_bytes(found.spec), elapsed_s, MIGRATION_DOWNTIME_S, rounds=1)

    def _arrive(self, found: _Guest, *, held: bool) -> None:
        self._guests[found.spec.guest] = found
        self._go_on(found, held=held)

    def _go_on(self, found: _Guest, *, held: bool) -> None:
        self._advance(found)
        found.held = held
        self._arm(found)

    async def adopt(self, spec: GuestSpec, cap_cores: float) -> None:
        """See `Migrates.adopt`."""
        await self.set_cap(spec.guest, cap_cores)
        self._begin(spec.guest)

    async def stop(self, guest: str) -> None:
        """See `Driver.stop`."""
        found = self._guests.pop(guest, None)
        if found is None:
            return
        found.passed.set()  # a task that waits there finds that the guest is gone
        if found.end is not None:
            found.end.cancel()

    async def calibrate(self, cpu_s: float) -> float:
        """See `Driver.calibrate`."""
        await asyncio.sleep(cpu_s)
        return UNITS_PER_CORE_S

    def sample(self) -> list[GuestSample]:
        """See `Driver.sample`."""
        for found in self._guests.values():
            self._advance(found)
        now_ns = int(self._now_s() * 1e9)
        return [
            GuestSample(
                guest=name, state="held" if found.held else "running", cap_cores=_in_force(found),
                wanted_cores=found.cap_cores, cpu_s=found.cpu_s,
                rss_mib=_touched_bytes(found.spec) / (1 << 20), read_mib=0.0, written_mib=0.0,
                units_done=int(found.units), units_mono_ns=now_ns,
                throttled_s=found.throttled_s if found.spec.watch_s else None,
                dirty_mib_per_s=self._dirty_mib_per_s(found) if found.spec.writes and "dirty" in self._extras else None,
            )
            for name, found in self._guests.items()
        ]  # fmt: skip

    def meter(self, guest: str) -> Meter:
        """See `Meters.meter`; only for the loop's own thread."""
        found = self._get(guest)

        def read() -> Reading:
            if self._guests.get(guest) is not found:
                raise DriverError(f"guest {guest} has ended")
            self._advance(found)
            return Reading(found.cpu_s, int(found.units))

        return read

    async def native(self, program: ProgramSpec, seconds: float, cap_cores: float) -> NativeReport:
        """See `Natives.native`."""
        cpu_s = seconds * min(cap_cores or program.workers, program.workers)
        units = int(cpu_s * UNITS_PER_CORE_S)
        if units >= program.work_units:
            raise DriverError(f"native: its {program.work_units} work units were done before {seconds:g} s passed")
        await asyncio.sleep(seconds)
        return NativeReport(units, seconds, cpu_s)

    def _place(self, uri: str) -> tuple[int, str]:
        return id(asyncio.get_running_loop()), uri

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _get(self, guest: str) -> _Guest:
        if guest not in self._guests:
            raise DriverError(f"guest {guest}: not here")
        return self._guests[guest]

    def _dirty_mib_per_s(self, found: _Guest) -> float:
        """Return the rate at which a guest writes to its memory: at its speed."""
        if "dirty" not in self._extras or found.held or not found.runs:
            return 0.0
        need_cores, _, _ = _need(found)
        return _touched_bytes(found.spec) / (1 << 20) / DIRTY_PERIOD_S * min(found.cap_cores / need_cores, 1.0)

    def _advance(self, found: _Guest) -> None:
        now_s = self._now_s()
        if found.runs and not found.held:
            need_cores, part, until = _need(found)
            length_s, cores = now_s - found.since_s, min(found.cap_cores, need_cores)
            found.units = min(until, found.units + cores * length_s * UNITS_PER_CORE_S / part)
            found.cpu_s += cores * length_s
            if cores < need_cores:  # it never waits for its pace, and uses all of its CPUs unless it is throttled
                found.throttled_s += (1.0 - cores / found.spec.program.workers) * length_s
        found.since_s = now_s

    def _begin(self, guest: str) -> None:
        found = self._get(guest)
        self._tell(DriverEvent(guest, "progress", int(self._now_s() * 1e9), {"units": int(found.units)}))
        self._arm(found)

    def _arm(self, found: _Guest) -> None:
        """Set the timer of the guest's end again, or of the next change of its need."""
        if found.end is not None:
            found.end.cancel()
            found.end = None
        need_cores, part, until = _need(found)
        cores = min(found.cap_cores, need_cores)
        if found.runs and not found.held and cores > 0:
            left_s = (until - found.units) * part / (cores * UNITS_PER_CORE_S)
            found.end = asyncio.get_running_loop().call_later(left_s, self._phase_ends, found, until)

    def _phase_ends(self, found: _Guest, until: float) -> None:
        self._advance(found)
        found.units = until  # exact, whether the timer was late or early
        if until < found.spec.program.work_units:
            self._arm(found)
        else:
            self._done(found)

    def _done(self, found: _Guest) -> None:
        name = found.spec.guest
        self._guests.pop(name, None)
        units = found.spec.program.work_units
        self._tell(DriverEvent(name, "done", int(self._now_s() * 1e9), {"units": units, "checksum": "null"}))


def _need(found: _Guest) -> tuple[float, float, float]:
    """Return a guest's present CPU need in cores, the part of its units that it computes, and up to which unit.

    A guest without a pace of its own uses its declared CPU need.
    """
    program = found.spec.program
    if not program.pace_ns:
        return found.spec.cpu_cores, 1.0, float(program.work_units)
    all_cores = program.units_per_iteration / (UNITS_PER_CORE_S * program.pace_ns * 1e-9)
    parts = [(begins * program.work_units / WHOLE_PARTS, part) for begins, part in parts_of(program.profile)]
    place = sum(begin <= found.units for begin, _ in parts) - 1
    part = parts[place][1] / WHOLE_PARTS
    until = parts[place + 1][0] if place + 1 < len(parts) else float(program.work_units)
    return all_cores * part, part, until


def _in_force(found: _Guest) -> float:
    return min(found.cap_cores, float(found.spec.program.workers))


def _digest(content: bytes) -> str:
    return xxhash.xxh3_128(content).hexdigest()


def _touched_bytes(spec: GuestSpec) -> int:
    return round((spec.memory_mib << 20) * spec.program.touched_frac)


def _read(image: Path, guest: str) -> float:
    """Return the progress in an image; raises `DriverError`."""
    try:
        content = json.loads(image.read_text(encoding="utf-8"))
        if content["guest"] == guest:
            return float(content["units"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DriverError(f"{image}: no image of this driver: {error}") from error
    raise DriverError(f"{image}: an image of guest {content['guest']}; expected {guest}")
