"""One job on live nodes: manual operations, each of which returns its measured cost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from testbed.bus.guest_details import Failed, GuestReport
from testbed.bus.messages import CapChange, GuestSpec, ImageRef, ListGuests
from testbed.errors import RunError, TestbedError
from testbed.lab import rates
from testbed.lab.job_guests import JobGuests, Unrecorded
from testbed.lab.live_migration import LiveMigration
from testbed.lab.live_nodes import LiveNodes
from testbed.lab.migration_targets import migration_targets
from testbed.lab.node_refs import NodeRef, node_indexes
from testbed.lab.outcomes import (
    Capped,
    Held,
    Migrated,
    Progress,
    Rate,
    Restored,
    Saved,
    Started,
    Transferred,
    Watched,
)
from testbed.lab.replies import Guests, ask

_EDGE_POLL_S = 0.01
_MIB = float(1 << 20)


class LabJob:
    """A job of one or several tasks with one guest per task; `Lab.job` makes the job, and `start` starts it.

    As a context manager the job always destroys its guests and images at the end. The context raises `RunError` at its
    end if a guest failed, because measurements taken meanwhile are invalid. Every operation returns when it has ended,
    and raises a `TestbedError` if it failed. Arguments for a node are its name or its index.
    """

    def __init__(
        self, live: LiveNodes, specs: tuple[GuestSpec, ...], nodes: tuple[int, ...], *, verified: bool
    ) -> None:
        self._live = live
        self._nodes = nodes
        self._targets: tuple[int, ...] = nodes  # of a migration in progress
        self._there = Unrecorded()
        self._job = JobGuests(specs=specs, state=self._there, verified=verified)
        self._images: tuple[ImageRef, ...] = ()
        self._image_holders: set[tuple[int, str]] = set()
        self._saves = 0
        self._progressed = asyncio.Event()
        self._ended = asyncio.Event()
        self._waiting: set[str] = set()
        self._running: set[str] = set(self.guests)
        self._ends: dict[str, GuestReport] = {}

    @property
    def guests(self) -> tuple[str, ...]:
        """Names of its guests, by task."""
        return self._job.guests

    @property
    def name(self) -> str:
        """Name of the guest of its first task."""
        return self.guests[0]

    @property
    def specs(self) -> tuple[GuestSpec, ...]:
        """The guests' specifications, by task."""
        return self._job.specs

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes that have its guests or their images, by task."""
        return tuple(self._live.fleet.name(node) for node in self._nodes)

    @property
    def memory_mib(self) -> int:
        """Memory of each task."""
        return self._job.memory_mib

    @property
    def cpu_cores(self) -> float:
        """The cores that each task can use without a cap."""
        return self.specs[0].cpu_cores

    @property
    def ends(self) -> dict[str, GuestReport]:
        """The last report of each guest that has ended so far, by guest name."""
        return dict(self._ends)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self.stop())
        for guest in self.guests:
            self._live.guest_events.unlisten(guest)
        if error is None or isinstance(error, TestbedError):
            self._check_lived(error)

    def _check_lived(self, error: TestbedError | None) -> None:
        """Raise `RunError` if a guest failed, as that failure is the cause of any other error."""
        failed = [
            f"guest {guest} failed{self._why(guest)}" for guest, end in self._ends.items() if end.event == "failed"
        ]
        if failed and failed[0] not in str(error):
            raise RunError(failed[0]) from error

    # --- operations

    async def start(self, yield_frac: float = 1.0) -> Started:
        """Create all guests, capped at `yield_frac` of `cpu_cores`; return when every task has progressed."""
        self._expect_progress()
        begin_s = _now_s()
        self._there.running_on = self._nodes
        await self._live.operations.start(self._job, self._nodes, yield_frac, ())
        there_s = _now_s()
        await self.wait_progress()
        return Started(there_s - begin_s, _now_s() - there_s)

    async def cap(self, yield_frac: float) -> Capped:
        """Set the caps of all guests to `yield_frac` of `cpu_cores`."""
        begin_s = _now_s()
        caps = await self._live.operations.set_cap(self._job, yield_frac)
        return Capped(caps, _now_s() - begin_s)

    async def hold(self) -> Held:
        """Pause every guest at its next consistent point, without saving it."""
        begin_s = _now_s()
        skew_s = await self._live.operations.hold(self._job)
        return Held(_now_s() - begin_s, skew_s)

    async def release(self) -> float:
        """Resume held guests; return the duration of the command in seconds."""
        begin_s = _now_s()
        await self._live.operations.release(self._job)
        return _now_s() - begin_s

    async def save(self, store: str = "") -> Saved:
        """Make a coordinated checkpoint in the image store `store` of each node; the guests are gone afterwards."""
        told: dict[str, float] = {}
        begin_s = _now_s()
        names = self._job.image_names(self._saves)
        self._image_holders.update(zip(self._nodes, names, strict=True))
        images = await self._live.operations.save(self._job, names, lambda _phase, detail: told.update(detail), store)
        save_s = _now_s() - begin_s
        self._saves += 1  # images of the next save get other names
        self._images, self._there.saved_on, self._there.running_on = images, self._nodes, None
        return Saved(
            save_s, told["hold_s"], told["run_on_s"], told["write_s"], told["sync_s"], told["hold_skew_s"],
            sum(image.bytes for image in images) / _MIB,
        )  # fmt: skip

    async def transfer(self, nodes: Sequence[NodeRef]) -> Transferred:
        """Copy the images of tasks to `nodes`, by task, where `restore` then reads them; only tasks that move."""
        targets = node_indexes(self._live.names, nodes, len(self.specs))
        begin_s = _now_s()
        self._image_holders.update(zip(targets, (image.image for image in self._images), strict=False))
        sent = await self._live.operations.transfer(self._job, self._images, targets)
        self._nodes = self._targets = self._there.saved_on = targets
        return Transferred(_now_s() - begin_s, sent / _MIB)

    async def restore(self, *, nodes: Sequence[NodeRef] = (), cold: bool = False, yield_frac: float = 1.0) -> Restored:
        """Create all guests from their images; return when every task has progressed.

        The guests are created on the nodes with the images, or on `nodes`, by task: then `transfer` copies the images
        first, which is not part of the returned times. `cold` images are dropped from the page cache before.
        """
        if nodes:
            await self.transfer(nodes)
        if not self._images:
            raise RunError(f"job {self._job.job_id} has no images: expected a save before a restore")
        self._expect_progress()
        begin_s = _now_s()
        self._there.running_on = self._nodes
        told = await self._live.operations.start(self._job, self._nodes, yield_frac, self._images, cold=cold)
        there_s = _now_s()
        await self.wait_progress()
        self._there.saved_on = None
        return Restored(
            there_s - begin_s,
            told.get("release_skew_s", 0.0),
            _now_s() - there_s,
            told.get("cached_frac", float("nan")),
        )

    async def migrate(self, nodes: Sequence[NodeRef], yield_frac: float = 1.0) -> Migrated:
        """Migrate live the tasks that are not on `nodes`, by task, to these nodes."""
        targets = node_indexes(self._live.names, nodes, len(self.specs))
        begin_s = _now_s()
        self._targets = targets
        moved = await self._live_migration().move(self._job, self._targets, yield_frac)
        self._nodes = self._targets
        return Migrated(
            _now_s() - begin_s,
            max((one.elapsed_s for one in moved), default=0.0),
            max((one.downtime_s for one in moved), default=0.0),
            sum(one.bytes for one in moved) / _MIB,
            max((one.rounds for one in moved), default=0),
        )

    async def stop(self) -> None:
        """Destroy the guests and delete their images; harmless when there are none."""
        await self._live.operations.stop(self._job, self._nodes)
        await self._live.operations.drop_images(self._image_holders)
        self._image_holders.clear()
        self._there.running_on = None

    def _live_migration(self) -> LiveMigration:
        live, scenario = self._live, self._live.scenario
        targets = migration_targets(scenario, dict(zip(live.names, live.facts, strict=True)))
        limits = scenario.migration
        return LiveMigration(live.fleet, live.operations, scenario.deadlines, limits, targets, self._there.arrive)

    # --- its progress

    async def progress(self) -> dict[str, Progress]:
        """Return the progress of each guest, by guest name; raises `RunError` for a missing guest."""
        found: dict[str, Progress] = {}
        deadline_s = self._live.command_s
        for node in sorted(set(self._nodes)):
            there = await ask(self._live.fleet, node, ListGuests(), Guests, deadline_s)
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
        return self._ends

    async def rate(self, window_s: float = rates.WINDOW_S, settle_s: float = rates.REPORT_S) -> float:
        """Wait `settle_s`, then return work units per second of the slowest task over at least `window_s`.

        Of a window of 4 s or more it is the median rate of parts of 2 s or more, as a busy machine is slow for moments.
        Units and seconds are the program's own, between two of its reports, so transmission delays do not matter.
        Raises `RunError` if a task reports no progress, or an implausible rate.
        """
        return await rates.rate(self, window_s, settle_s, self._live.command_s)

    async def rate_and_use(self, window_s: float = rates.WINDOW_S, settle_s: float = rates.SETTLE_S) -> Rate:
        """Measure as `rate`, from the first report after `settle_s` on, and the CPU time that tasks use meanwhile."""
        return await rates.rate_and_use(self._live, self, window_s, settle_s)

    async def watch(self, every_s: float, for_s: float, changes: Sequence[tuple[float, float]] = ()) -> Watched:
        """Sample CPU time and work units of the first task every `every_s` for `for_s` seconds, on its node.

        `changes` are pairs (seconds after the beginning, new cap in cores).
        """
        caps = tuple(CapChange(after_s=after_s, caps={self.name: cores}) for after_s, cores in changes)
        return await self._live.watch(self._nodes[0], (self.name,), every_s, for_s, caps)

    async def edge(self) -> tuple[float, int]:
        """Wait until the reported progress of the first task changes; return the controller's time and its units.

        Between two edges, the job lost the time that its work did not need. Raises `RunError` if there is no edge
        within the deadline of a command.
        """
        lead, limit_s = self.guests[0], self._live.command_s
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
        limit_s = self._live.command_s
        try:
            async with asyncio.timeout(limit_s):
                await event.wait()
        except TimeoutError:
            raise RunError(f"{what} within {limit_s:g} s") from None
        failed = [guest for guest, end in self._ends.items() if end.event == "failed"]
        if failed:
            raise RunError(f"guest {failed[0]} failed{self._why(failed[0])}")

    def _why(self, guest: str) -> str:
        end = self._ends.get(guest)
        if end is None:
            return ""
        return f": {end.detail.reason if isinstance(end.detail, Failed) else end.event}"

    def _expect_progress(self) -> None:
        for guest in self.guests:
            self._live.guest_events.listen(guest, self._hear)
        self._waiting = set(self.guests)
        self._progressed.clear()

    def _hear(self, node: int, event: GuestReport) -> None:
        task = self.guests.index(event.guest)
        if node not in (self._nodes[task], self._targets[task]):
            return  # the event is from another node than this guest's
        if event.event in ("progress", "done"):  # a guest that was restored just before its end may report only `done`
            self._waiting.discard(event.guest)
        if event.event in ("done", "failed"):
            self._ends[event.guest] = event
            self._running.discard(event.guest)
            self._there.finished_tasks.add(task)
        if not self._waiting or any(end.event == "failed" for end in self._ends.values()):
            self._progressed.set()
        if not self._running or any(end.event == "failed" for end in self._ends.values()):
            self._ended.set()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
