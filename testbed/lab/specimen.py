"""One job on live nodes, taken through its operations by hand, and what each of them took.

Seconds are the controller's, by its monotonic clock, unless a name says `reported`: those are the hypervisor's or the
agent's own. What the job itself lost is told by its progress (`Specimen.edge`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from testbed.bus.guest_details import Failed, GuestReport
from testbed.bus.messages import GuestSpec, ImageRef, ListGuests
from testbed.errors import RunError, TestbedError
from testbed.lab.job_guests import JobGuests, Unrecorded
from testbed.lab.replies import Guests, ask

if TYPE_CHECKING:
    from testbed.lab.bench import Bench

_EDGE_POLL_S = 0.01
_MIB = float(1 << 20)


@dataclass(frozen=True, slots=True)
class Started:
    """`start_s`: until every guest was there; `first_progress_s`: from then until every task had progressed."""

    start_s: float
    first_progress_s: float


@dataclass(frozen=True, slots=True)
class Capped:
    """Caps by task as read back, and how long it took to set them all."""

    caps_cores: dict[int, float]
    round_trip_s: float


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a guest is: work units, the program's clock at that moment, CPU time used, its state.

    `cap_cores` is the cap in force as the node read it back just then, None where it could not.
    """

    units: int
    mono_s: float
    cpu_s: float
    cap_cores: float | None
    state: str


@dataclass(frozen=True, slots=True)
class Held:
    """Until every guest stood still, and how far apart they did."""

    hold_s: float
    skew_s: float


@dataclass(frozen=True, slots=True)
class Saved:
    """A coordinated checkpoint: `save_s` is all of it, `hold_s` its first part; what is reported is of the slowest."""

    save_s: float
    hold_s: float
    run_on_reported_s: float
    write_reported_s: float
    sync_reported_s: float
    hold_skew_s: float
    image_mib: float  # of all tasks


@dataclass(frozen=True, slots=True)
class Transferred:
    """Images on their way to other nodes, all tasks side by side."""

    transfer_s: float
    image_mib: float


@dataclass(frozen=True, slots=True)
class Restored:
    """As `Started`, from images; `cached_frac` of them was in the page cache before, NaN if that is not known."""

    restore_s: float
    release_skew_s: float
    first_progress_s: float
    cached_frac: float


@dataclass(frozen=True, slots=True)
class Migrated:
    """A live migration of all tasks that moved; `downtime_reported_s` is that of the worst of them."""

    migrate_s: float
    reported_s: float
    downtime_reported_s: float
    moved_mib: float
    rounds: int


class Specimen:
    """A job of one or several tasks. As a context it destroys its guests and images at the end, whatever happened.

    The context raises `RunError` at its end if a guest failed, as what was measured meanwhile means nothing.
    """

    def __init__(self, bench: Bench, specs: tuple[GuestSpec, ...], nodes: tuple[int, ...], *, verified: bool) -> None:
        self._bench = bench
        self.specs = specs
        self.nodes = nodes
        self._targets: tuple[int, ...] = nodes  # of a migration under way
        self.memory_mib = specs[0].memory_mib
        self.cpu_cores = specs[0].cpu_cores
        self._there = Unrecorded()
        self._job = JobGuests(specs=specs, state=self._there, verified=verified)
        self._images: tuple[ImageRef, ...] = ()
        self._image_holders: set[tuple[int, str]] = set()
        self._saves = 0
        self._progressed = asyncio.Event()
        self._ended = asyncio.Event()
        self._waiting: set[str] = set()
        self._running: set[str] = set(self.guests)
        self.ends: dict[str, GuestReport] = {}

    @property
    def guests(self) -> tuple[str, ...]:
        """Names of its guests, by task."""
        return self._job.guests

    async def __aenter__(self) -> Self:
        for guest in self.guests:
            self._bench.listen(guest, self._hear)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self.stop())
        for guest in self.guests:
            self._bench.unlisten(guest)
        if error is None or isinstance(error, TestbedError):
            self._check_lived(error)

    def _check_lived(self, error: TestbedError | None) -> None:
        """Raise `RunError` if a guest failed, whether the trial noticed it or not: that is its reason then."""
        failed = [
            f"guest {guest} failed{self._why(guest)}" for guest, end in self.ends.items() if end.event == "failed"
        ]
        if failed and failed[0] not in str(error):
            raise RunError(failed[0]) from error

    # --- operations

    async def start(self, yield_frac: float = 1.0) -> Started:
        """Create all guests and return when every task has progressed."""
        self._expect_progress()
        begin_s = _now_s()
        self._there.running_on = self.nodes
        await self._bench.operations.start(self._job, self.nodes, yield_frac, ())
        there_s = _now_s()
        await self.wait_progress()
        return Started(there_s - begin_s, _now_s() - there_s)

    async def set_yield(self, yield_frac: float) -> Capped:
        """Set the caps of all guests to `yield_frac` of what their task can use."""
        begin_s = _now_s()
        caps = await self._bench.operations.set_cap(self._job, yield_frac)
        return Capped(caps, _now_s() - begin_s)

    async def hold(self) -> Held:
        """Let every guest stand still at its next consistent point, without saving it."""
        begin_s = _now_s()
        skew_s = await self._bench.operations.hold(self._job)
        return Held(_now_s() - begin_s, skew_s)

    async def release(self) -> float:
        """Let held guests go on; return how long the order took."""
        begin_s = _now_s()
        await self._bench.operations.release(self._job)
        return _now_s() - begin_s

    async def save(self, store: str = "") -> Saved:
        """Coordinated checkpoint into an image store of each node; the guests are gone afterwards."""
        told: dict[str, float] = {}
        begin_s = _now_s()
        names = self._job.image_names(self._saves)
        self._image_holders.update(zip(self.nodes, names, strict=True))
        images = await self._bench.operations.save(self._job, names, lambda _phase, detail: told.update(detail), store)
        save_s = _now_s() - begin_s
        self._saves += 1  # images of the next save get other names
        self._images, self._there.saved_on, self._there.running_on = images, self.nodes, None
        return Saved(
            save_s, told["hold_s"], told["run_on_s"], told["write_s"], told["sync_s"], told["hold_skew_s"],
            sum(image.bytes for image in images) / _MIB,
        )  # fmt: skip

    async def transfer(self, nodes: Sequence[int]) -> Transferred:
        """Copy the images of tasks that move to `nodes`, where `restore` will then look for them."""
        begin_s = _now_s()
        self._image_holders.update(zip(nodes, (image.image for image in self._images), strict=True))
        sent = await self._bench.operations.transfer(self._job, self._images, nodes)
        self.nodes = self._targets = self._there.saved_on = tuple(nodes)
        return Transferred(_now_s() - begin_s, sent / _MIB)

    async def restore(self, *, cold: bool = False, yield_frac: float = 1.0) -> Restored:
        """Create all guests from their images where these are; return when every task has progressed."""
        self._expect_progress()
        begin_s = _now_s()
        self._there.running_on = self.nodes
        told = await self._bench.operations.start(self._job, self.nodes, yield_frac, self._images, cold=cold)
        there_s = _now_s()
        await self.wait_progress()
        self._there.saved_on = None
        return Restored(
            there_s - begin_s,
            told.get("release_skew_s", 0.0),
            _now_s() - there_s,
            told.get("cached_frac", float("nan")),
        )

    async def migrate(self, nodes: Sequence[int], yield_frac: float = 1.0) -> Migrated:
        """Move the tasks that are not on `nodes` there while they work."""
        begin_s = _now_s()
        self._targets = tuple(nodes)
        migration = replace(self._bench.live_migration, tell=self._there.arrive)
        moved = await migration.move(self._job, self._targets, yield_frac)
        self.nodes = self._targets
        return Migrated(
            _now_s() - begin_s,
            max((one.elapsed_s for one in moved), default=0.0),
            max((one.downtime_s for one in moved), default=0.0),
            sum(one.bytes for one in moved) / _MIB,
            max((one.rounds for one in moved), default=0),
        )

    async def stop(self) -> None:
        """Destroy the guests and delete their images; harmless when there are none."""
        await self._bench.operations.stop(self._job, self.nodes)
        await self._bench.operations.drop_images(self._image_holders)
        self._image_holders.clear()
        self._there.running_on = None

    # --- what it does

    async def progress(self) -> dict[str, Progress]:
        """Return how far each guest is, by its name; raises `RunError` for one that is not there."""
        found: dict[str, Progress] = {}
        deadline_s = self._bench.scenario.deadlines.command_s
        for node in sorted(set(self.nodes)):
            there = await ask(self._bench.fleet, node, ListGuests(), Guests, deadline_s)
            found |= {
                g.guest: Progress(g.units_done, g.units_mono_ns / 1e9, g.cpu_s, g.cap_cores, g.state)
                for g in there.guests
                if g.guest in self.guests
            }
        if missing := [guest for guest in self.guests if guest not in found]:
            raise RunError(f"guests {', '.join(missing)}: not on their node{self._why(missing[0])}")
        return found

    async def wait_progress(self) -> None:
        """Return when every task has progressed since it was last started or restored."""
        await self._await(self._progressed, f"no progress of {', '.join(sorted(self._waiting))}")

    async def wait_end(self) -> dict[str, GuestReport]:
        """Return the last event of each guest once all have ended: `done` with a checksum, or `failed`."""
        await self._await(self._ended, f"no end of {', '.join(sorted(self._running))}")
        return self.ends

    async def rate(self, window_s: float) -> float:
        """Return work units a second of the slowest task over about `window_s`, by the program's own clock."""
        before = await self.progress()
        await asyncio.sleep(window_s)
        after = await self.progress()
        rates = []
        for guest in self.guests:
            elapsed_s = after[guest].mono_s - before[guest].mono_s
            if elapsed_s <= 0.0:
                raise RunError(f"guest {guest}: it told nothing of its progress within {window_s:g} s")
            rates.append((after[guest].units - before[guest].units) / elapsed_s)
        return min(rates)

    async def edge(self) -> tuple[float, int]:
        """Wait until the progress of the first task is seen to change; return the controller's time and its units.

        Between two edges, the time that its work did not need was lost by the job. Raises `RunError` if there is none
        within the deadline of a command.
        """
        lead, limit_s = self.guests[0], self._bench.scenario.deadlines.command_s
        first = (await self.progress())[lead].units
        before_s = _now_s()
        while True:
            now_s = _now_s()
            units = (await self.progress())[lead].units
            if units != first:
                return now_s, units
            if now_s - before_s > limit_s:
                raise RunError(f"no progress of {lead} within {limit_s:g} s")
            await asyncio.sleep(_EDGE_POLL_S)

    async def _await(self, event: asyncio.Event, what: str) -> None:
        limit_s = self._bench.scenario.deadlines.command_s
        try:
            async with asyncio.timeout(limit_s):
                await event.wait()
        except TimeoutError:
            raise RunError(f"{what} within {limit_s:g} s") from None
        failed = [guest for guest, end in self.ends.items() if end.event == "failed"]
        if failed:
            raise RunError(f"guest {failed[0]} failed{self._why(failed[0])}")

    def _why(self, guest: str) -> str:
        end = self.ends.get(guest)
        if end is None:
            return ""
        return f": {end.detail.reason if isinstance(end.detail, Failed) else end.event}"

    def _expect_progress(self) -> None:
        self._waiting = set(self.guests)
        self._progressed.clear()

    def _hear(self, node: int, event: GuestReport) -> None:
        task = self.guests.index(event.guest)
        if node not in (self.nodes[task], self._targets[task]):
            return  # it has no say about this guest
        if event.event in ("progress", "done"):  # who was restored just before its end may tell nothing else
            self._waiting.discard(event.guest)
        if event.event in ("done", "failed"):
            self.ends[event.guest] = event
            self._running.discard(event.guest)
            self._there.finished_tasks.add(task)
        if not self._waiting or any(end.event == "failed" for end in self.ends.values()):
            self._progressed.set()
        if not self._running or any(end.event == "failed" for end in self.ends.values()):
            self._ended.set()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
