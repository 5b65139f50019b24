"""Carries plans out: every action once it is unblocked, one operation a job at a time, memory never over-committed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace

from testbed.control.cluster import Cluster, LiveJob, Phase
from testbed.control.image_room import RoomLedger, Shortage, image_needs
from testbed.control.live_migration import LiveMigration, LostError, StaysError
from testbed.control.operations import NoRoomThereError, Operations, SaveError
from testbed.control.planner import PlannedAction, Verb
from testbed.control.recorder import Recorder
from testbed.control.reschedulings import LIVE, Rescheduling
from testbed.errors import TestbedError
from testbed.failure_codes import Failure, FailureCode

_CODES = {
    Verb.START: FailureCode.START_FAILED,
    Verb.CAP: FailureCode.CAP_FAILED,
    Verb.SAVE: FailureCode.SAVE_FAILED,
    Verb.TRANSFER: FailureCode.TRANSFER_FAILED,
    Verb.RESTORE: FailureCode.RESTORE_FAILED,
    Verb.MIGRATE: FailureCode.MIGRATE_FAILED,
}  # of failures whose cause is not known more exactly


@dataclass(frozen=True, slots=True)
class _Pending:
    action: PlannedAction
    planned_s: float
    waits_for: tuple[PlannedAction, ...]
    then_to: tuple[int, ...] | None = None  # where the images of a save are transferred to


@dataclass(frozen=True, slots=True)
class Flight:
    """An operation under way: `task` carries it out, since wall second `begin_s` of the run."""

    action: PlannedAction
    begin_s: float
    task: asyncio.Task[None]


class Executor:
    """Owns the operations in flight.

    `on_failed(job, failure)` is called when an operation has failed for good, `on_settled(job)` when a job has none
    under way any more, `on_stays()` when a live migration did not succeed, or a node had no room for images, and a new
    plan is to be made without that. An operation for whose images a node has no room is not begun until it has; a saved
    job that would have to move for it resumes where it was, if it fits there.
    """

    def __init__(
        self,
        cluster: Cluster,
        operations: Operations,
        migration: LiveMigration,
        recorder: Recorder,
        memory_mib: Sequence[int],
        tries: int,
        on_failed: Callable[[LiveJob, Failure], None],
        on_settled: Callable[[LiveJob], None],
        on_stays: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._operations = operations
        self._migration = migration
        self._recorder = recorder
        self._memory_mib = tuple(memory_mib)
        self._tries = tries
        self._on_failed = on_failed
        self._on_settled = on_settled
        self._on_stays = on_stays
        self._pending: list[_Pending] = []
        self._flights: dict[int, Flight] = {}
        self._aside: set[asyncio.Task[None]] = set()
        self._number = 0
        self._room = RoomLedger(len(self._memory_mib))
        self._short: dict[int, tuple[Verb, tuple[tuple[int, int], ...]]] = {}  # by job: what has no room, as recorded

    @property
    def flights(self) -> tuple[Flight, ...]:
        """The operations under way, the oldest first."""
        return tuple(self._flights.values())

    def now_s(self) -> float:
        """Wall seconds since the run began."""
        return self._recorder.now_s()

    @property
    def pending(self) -> int:
        """How many planned actions wait for their preconditions."""
        return len(self._pending)

    def busy(self, job_id: int) -> bool:
        """Whether an operation on the job is under way."""
        return job_id in self._flights

    def free_mib(self, node: int) -> int:
        """Memory of a node that no guest holds; a guest holds it from its start's first command to its end."""
        return self._memory_mib[node] - sum(live.held_mib(node) for live in self._cluster.jobs.values())

    def submit(self, actions: Sequence[PlannedAction]) -> None:
        """Take a new plan. What is in flight goes on; what was planned before and has not begun is forgotten."""
        now_s = self._recorder.now_s()
        self._pending = [
            _Pending(action, now_s, tuple(actions[before] for before in action.after), _then_to(actions, place))
            for place, action in enumerate(actions)
        ]
        wanted = {(action.job_id, action.verb) for action in actions}
        self._short = {job: short for job, short in self._short.items() if (job, short[0]) in wanted}
        self.pump()

    def hear_room(self, node: int, free_mib: int | None, taken_ns: int) -> None:
        """Take the room for images that a node reported at a time of the event loop's clock."""
        if self._room.heard(node, free_mib, taken_ns) and self._short:
            self.pump()

    def pump(self) -> None:
        """Start every planned action whose preconditions hold."""
        waiting = {id(pending.action) for pending in self._pending}
        left: list[_Pending] = []
        cannot_move: list[_Pending] = []
        for pending in self._pending:
            action = pending.action
            live = self._cluster.jobs[action.job_id]
            blocked = (
                live.ended
                or self.busy(action.job_id)
                or any(id(earlier) in waiting for earlier in pending.waits_for)
                or any(self.free_mib(node) < mib for node, mib in action.needs_mib)
                or not all(self._cluster.node_reachable[node] for node in _touched(live, action))
            )
            if blocked:
                left.append(pending)
            elif self._has_no_room(live, pending):
                left.append(pending)
                if action.verb is Verb.TRANSFER:
                    cannot_move.append(pending)
            else:
                self._launch(live, pending)
        self._pending = [pending for pending in left if not self._cluster.jobs[pending.action.job_id].ended]
        for pending in cannot_move:  # after all others, which the decision wants there
            self._resume_where_saved(pending)

    def _has_no_room(self, live: LiveJob, pending: _Pending) -> bool:
        """Return whether a node has no room for the images of an action; record that once."""
        action = pending.action
        short = self._room.short(image_needs(action, live.memory_mib, live.image_copies(), pending.then_to))
        if not short:
            return False
        key = (action.verb, tuple((each.node, each.needed_mib) for each in short))
        if self._short.get(live.job_id) != key:
            self._short[live.job_id] = key
            for each in short:
                self._recorder.no_room(live.job_id, action.verb, each)
        return True

    def _resume_where_saved(self, transfer: _Pending) -> None:
        """Restore a job, whose images have no room where it is wanted, on the nodes that have them, if it fits there.

        Otherwise saved jobs could wait for each other's images to go, for good.
        """
        live = self._cluster.jobs[transfer.action.job_id]
        (restore,) = (pending for pending in self._pending if transfer.action in pending.waits_for)
        here = live.saved_on or ()
        needs = tuple((node, tasks * live.memory_mib) for node, tasks in sorted(Counter(here).items()))
        fits = all(self.free_mib(node) >= mib for node, mib in needs)
        if here and fits and all(self._cluster.node_reachable[node] for node in here):
            self._pending = [pending for pending in self._pending if pending not in (transfer, restore)]
            action = replace(restore.action, nodes=here, after=(), needs_mib=needs)
            self._launch(live, _Pending(action, transfer.planned_s, ()))

    def _launch(self, live: LiveJob, pending: _Pending) -> None:
        self._number += 1
        number = self._number
        action = pending.action
        self._short.pop(live.job_id, None)
        self._room.order(number, image_needs(action, live.memory_mib, live.image_copies()))
        if action.verb in (Verb.START, Verb.RESTORE):
            live.running_on, live.placed_s = action.nodes, self._recorder.now_s()
            live.progressed = set()
        if action.verb is Verb.MIGRATE:
            live.migrating_to = action.nodes
        if action.verb in (Verb.START, Verb.RESTORE, Verb.MIGRATE):
            live.been.update((node, task) for task, node in enumerate(action.nodes))
        live.phase = {
            Verb.START: Phase.STARTING,
            Verb.CAP: Phase.RUNNING,
            Verb.SAVE: Phase.SAVING,
            Verb.TRANSFER: Phase.TRANSFERRING,
            Verb.RESTORE: Phase.RESTORING,
            Verb.MIGRATE: Phase.MIGRATING,
        }[action.verb]
        live.flight = action
        self._recorder.intent(number, action, live.guests)
        task = asyncio.create_task(self._fly(number, live, pending), name=f"{action.verb} job {action.job_id}")
        self._flights[action.job_id] = Flight(action, self._recorder.now_s(), task)

    async def _fly(self, number: int, live: LiveJob, pending: _Pending) -> None:
        action = pending.action
        begin_s = self._recorder.now_s()
        phases: dict[str, float] = {}
        caps_cores: list[float] = []
        error: str | None = None
        code = _CODES[action.verb]
        stays = lost = False
        full: NoRoomThereError | None = None
        moved = 0
        try:
            for attempt in range(1, self._tries + 1):
                try:
                    moved = await self._do(live, action, phases, caps_cores)
                    error = None
                    break
                except TestbedError as failure:
                    error, code = str(failure), failure.failure_code or _CODES[action.verb]
                    stays, lost = isinstance(failure, StaysError), isinstance(failure, LostError)
                    full = failure if isinstance(failure, NoRoomThereError) else None
                    hopeless = isinstance(failure, SaveError) or stays or lost or full or attempt == self._tries
                    if live.finished_tasks or live.failure is not None or hopeless:
                        break
                    self._recorder.journal("retry", action=number, job=live.job_id, attempt=attempt, error=error)
                    await asyncio.sleep(0.2 * 2**attempt)
        except asyncio.CancelledError:
            error = "cancelled"
            raise
        finally:
            del self._flights[action.job_id]
            live.flight = None
            self._room.over(number, int(asyncio.get_running_loop().time() * 1e9))
            self._recorder.outcome(
                number, action, elapsed_s=self._recorder.now_s() - begin_s, waited_s=begin_s - pending.planned_s,
                moved=moved, error=error, phases=phases, caps_cores=caps_cores,
            )  # fmt: skip
        if error is not None:
            self._undo(live, action)
            self._pending = [other for other in self._pending if other.action.job_id != live.job_id]
            if full is not None:
                self._refused(live, action, full)
            elif stays:
                live.live_refused, live.migrating_to = True, None
                self._on_stays()
            elif (lost or not live.finished_tasks) and live.failure is None:
                self._on_failed(live, Failure(code, f"could not {action.verb}: {error}"))
        self.settle(live)
        self.pump()

    def _refused(self, live: LiveJob, action: PlannedAction, full: NoRoomThereError) -> None:
        """A node has no room although it seemed to have: the job stays as it is, until the node reports more."""
        self._room.refused(full.node, full.room)
        self._short[live.job_id] = (action.verb, ((full.node, full.room.needed_mib),))
        self._recorder.no_room(live.job_id, action.verb, Shortage(full.node, full.room.needed_mib, full.room.free_mib))
        self._on_stays()

    def settle(self, live: LiveJob) -> None:
        """Draw the conclusions of events that arrived while an operation was under way."""
        if self.busy(live.job_id):
            return
        if live.phase is Phase.RUNNING and live.advances:
            self._close_rescheduling(live)
        self._on_settled(live)

    async def _do(self, live: LiveJob, action: PlannedAction, phases: dict[str, float], caps_cores: list[float]) -> int:
        """Perform one action and write down what it changed; return the bytes that it moved."""
        record = _present_rescheduling(live)
        now_s = self._recorder.now_s
        match action.verb:
            case Verb.START:
                await self._operations.start(live, action.nodes, action.yield_frac, ())
                live.enter(Phase.RUNNING)
                live.yield_frac = action.yield_frac
            case Verb.CAP:
                found = await self._operations.set_running_cap(live, action.yield_frac)
                caps_cores[:] = [found[task] for task in sorted(found)]
                live.yield_frac = action.yield_frac
            case Verb.SAVE:
                return await self._save(live, phases)
            case Verb.TRANSFER:
                begin_s = now_s()
                sent = await self._operations.transfer(live, action.nodes)
                live.enter(Phase.SAVED)
                live.saved_on = action.nodes
                if record:
                    record.moved_tasks = sum(a != b for a, b in zip(record.saved_on, action.nodes, strict=True))
                    record.transfer_s += now_s() - begin_s
                    record.transferred_bytes += sent
                return sent
            case Verb.RESTORE:
                if record and record.restore_begin_s is None:
                    record.restore_begin_s = now_s()
                told = await self._operations.start(live, action.nodes, action.yield_frac, live.images)
                phases.update({name: value for name, value in told.items() if name == "release_skew_s"})
                live.enter(Phase.RUNNING)
                live.yield_frac, live.saved_on = action.yield_frac, None
                read = sum(image.bytes for image in live.images)
                if record:
                    record.restore_end_s = now_s()
                    record.restored_bytes += read
                    record.release_skew_s = phases.get("release_skew_s", 0.0)
                return read
            case Verb.MIGRATE:
                return await self._migrate(live, action, phases)
        return 0

    async def _migrate(self, live: LiveJob, action: PlannedAction, phases: dict[str, float]) -> int:
        now_s = self._recorder.now_s
        self._close_rescheduling(live)
        record = Rescheduling("migration", now_s(), LIVE)
        before = _open_rescheduling(live)
        moved = await self._migration.move(live, action.nodes, action.yield_frac)
        live.enter(Phase.RUNNING)
        live.yield_frac, live.migrating_to = action.yield_frac, None
        if not moved:  # every guest that should move has ended
            return 0
        record.live_end_s = now_s()
        record.downtime_s = max(each.downtime_s for each in moved)
        record.migrated_bytes = sum(each.bytes for each in moved)
        record.moved_tasks = len(moved)
        self._cut_off(live, before, record.begin_s)
        live.reschedulings.append(record)
        live.migrations += 1
        phases.update(downtime_s=record.downtime_s, migrate_s=max(each.elapsed_s for each in moved))
        return record.migrated_bytes

    async def _save(self, live: LiveJob, phases: dict[str, float]) -> int:
        now_s = self._recorder.now_s
        record = Rescheduling("preemption" if live.intended is None else "migration", now_s())
        self._close_rescheduling(live)
        before = _open_rescheduling(live)
        live.reschedulings.append(record)
        try:
            live.images = await self._operations.save(live, lambda _name, times: phases.update(times))
        except BaseException:
            live.reschedulings.remove(record)
            raise
        self._cut_off(live, before, record.begin_s)
        live.enter(Phase.SAVED)
        live.saved_on, live.running_on, live.yield_frac = live.running_on, None, 0.0
        live.live_refused = False
        record.hold_skew_s = phases.get("hold_skew_s", 0.0)
        record.save_end_s = live.left_s = now_s()
        record.saved_on = live.saved_on or ()
        record.saved_bytes = sum(image.bytes for image in live.images)
        if record.reason == "migration":
            record.wanted_s = record.begin_s
            live.migrations += 1
        else:
            live.preemptions += 1
            if live.intended is not None:  # it was wanted again while it was being saved
                record.wanted_s = record.save_end_s
        return record.saved_bytes

    def _undo(self, live: LiveJob, action: PlannedAction) -> None:
        match action.verb:
            case Verb.START:
                live.enter(Phase.WAITING)
                live.running_on = None
            case Verb.RESTORE | Verb.TRANSFER:
                live.enter(Phase.SAVED)
                live.running_on = None
            case Verb.SAVE | Verb.CAP | Verb.MIGRATE:
                live.enter(Phase.RUNNING)

    def _close_rescheduling(self, live: LiveJob) -> None:
        """The job has progressed after a restore or a migration: its penalty is known, and its images are useless."""
        record = _open_rescheduling(live)
        if record is None or record.back_s is None or not live.advances:
            return
        record.progress_s = max(live.progress_s, record.back_s)
        self._recorder.rescheduling(live, record)
        self.aside(self._operations.drop_images(live), f"drop images of job {live.job_id}")

    def _cut_off(self, live: LiveJob, record: Rescheduling | None, at_s: float) -> None:
        """The job was interrupted again before it had progressed."""
        if record is not None and not record.complete:
            record.cut_off_s = at_s
            self._recorder.rescheduling_cut_off(live, record)

    def aside(self, work: Coroutine[None, None, None], name: str) -> None:
        """Run a clean-up beside everything else; `close` waits for it."""
        task = asyncio.create_task(work, name=name)
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    def bury(self, live: LiveJob) -> None:
        """Give up what is in flight or planned for a job that has failed, and destroy what is left of it."""
        self.aside(self._bury(live), f"bury job {live.job_id}")

    async def _bury(self, live: LiveJob) -> None:
        await self.withdraw(live)
        await self._operations.drop_images(live)
        self.pump()

    async def withdraw(self, live: LiveJob) -> None:
        """Give up what is in flight or planned for a job, and destroy its guests; its images stay."""
        self._pending = [pending for pending in self._pending if pending.action.job_id != live.job_id]
        flight = self._flights.get(live.job_id)
        if flight is not None:
            flight.task.cancel()
            await asyncio.wait([flight.task])
        self._cut_off(live, _present_rescheduling(live), self._recorder.now_s())
        if live.running_on is not None:
            await self._operations.stop(live, live.running_on)
            if live.migrating_to is not None:  # after the source, so that none arrives later
                await self._operations.stop(live, live.migrating_to)
            live.running_on = live.migrating_to = None

    async def forget(self, live: LiveJob) -> None:
        """Remove what an ended job leaves behind."""
        await self._operations.drop_images(live)

    async def close(self) -> None:
        """Give up everything in flight and wait until it has let go."""
        self._pending = []
        under_way = [flight.task for flight in self._flights.values()]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, *self._aside, return_exceptions=True)


def _then_to(actions: Sequence[PlannedAction], index: int) -> tuple[int, ...] | None:
    """Return where the images of the save at this place of a plan are transferred to, None if they stay."""
    moves = (action.nodes for action in actions if action.verb is Verb.TRANSFER and index in action.after)
    return next(moves, None)


def _touched(live: LiveJob, action: PlannedAction) -> set[int]:
    """Return the nodes that an action commands, or takes images or guests from."""
    sources = live.saved_on if action.verb in (Verb.TRANSFER, Verb.RESTORE) else live.running_on
    return {*action.nodes, *(sources or ())}


def _open_rescheduling(live: LiveJob) -> Rescheduling | None:
    """Return the last interruption of a job that is back from it, but has not progressed since."""
    record = _present_rescheduling(live)
    return None if record is None or record.back_s is None else record


def _present_rescheduling(live: LiveJob) -> Rescheduling | None:
    """Return the last interruption of a job if it is not over."""
    record = live.reschedulings[-1] if live.reschedulings else None
    return None if record is None or record.complete or record.cut_off else record
