"""Executes plans: starts each unblocked action, one operation per job at a time, without overcommitting memory."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace

from testbed.bus.failure_codes import Failure
from testbed.bus.guest_details import Done, Progress
from testbed.bus.messages import ImageRef
from testbed.control.action_facts import images_of, then_to, touched
from testbed.control.cluster import Cluster, LiveJob
from testbed.control.image_room import RoomLedger, Shortage, image_needs
from testbed.control.planner import PlannedAction, Verb
from testbed.control.recorder import Recorder
from testbed.control.replicas import Replicas
from testbed.errors import FailureCode, TestbedError
from testbed.lab.job_commands import NoRoomThereError
from testbed.lab.live_migration import LiveMigration, LostError, StaysError
from testbed.lab.operations import Operations
from testbed.lab.saving import SaveError
from testbed.run import events
from testbed.run.interruptions import MIGRATION, PAUSE, PREEMPTION, Interruption
from testbed.run.phases import Phase

_CODES = {
    Verb.START: FailureCode.START_FAILED,
    Verb.CAP: FailureCode.CAP_FAILED,
    Verb.SAVE: FailureCode.SAVE_FAILED,
    Verb.TRANSFER: FailureCode.TRANSFER_FAILED,
    Verb.RESTORE: FailureCode.RESTORE_FAILED,
    Verb.MIGRATE: FailureCode.MIGRATE_FAILED,
}  # of failures without a more specific cause
_LOST = "the controller was lost"
_ARRIVES = (Verb.START, Verb.TRANSFER, Verb.RESTORE, Verb.MIGRATE)


@dataclass(frozen=True, slots=True)
class _Pending:
    action: PlannedAction
    planned_s: float
    waits_for: tuple[PlannedAction, ...]
    then_to: tuple[int, ...] | None = None  # where the images of a save are transferred to


@dataclass(frozen=True, slots=True)
class _Result:
    """The result of an operation: bytes moved, images written, caps set, and its phases in seconds.

    `reason` is the reason of the interruption that begins with the operation.
    """

    moved: int = 0
    reason: str | None = None
    images: tuple[ImageRef, ...] = ()
    caps_cores: tuple[float, ...] = ()
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Flight:
    """An operation in progress: `task` executes it, since wall second `begin_s` of the run."""

    action: PlannedAction
    begin_s: float
    task: asyncio.Task[None]


class Executor:
    """Owns the operations in flight.

    A job ends when all its tasks have ended and no operation on it is in progress. A job fails if an operation on it
    fails permanently. An operation waits while a node has no space for its images. In this case a saved job that has to
    move resumes on its old nodes, if it fits there. `hear` listens to the ledger. `broken` gets the first error of an
    operation or a clean-up that is not the failure of a command: the run is not valid after it.
    """

    def __init__(
        self,
        cluster: Cluster,
        operations: Operations,
        migration: LiveMigration,
        recorder: Recorder,
        memory_mib: Sequence[int],
        tries: int,
        replicas: int = 0,
        *,
        restarts: bool = False,
        saves_at_once: int | None = None,
    ) -> None:
        self._cluster = cluster
        self._saves_at_once = saves_at_once  # on each node
        self._operations = operations
        self._migration = migration
        self._recorder = recorder
        self._memory_mib = tuple(memory_mib)
        self._tries = tries
        self._pending: list[_Pending] = []
        self._flights: dict[int, Flight] = {}
        self._aside: set[asyncio.Task[None]] = set()
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._number = cluster.history.last_action
        self._room = RoomLedger(len(self._memory_mib))
        self._short: dict[int, tuple[Verb, tuple[tuple[int, int], ...]]] = {}  # recorded shortages, by job
        self.replicas = Replicas(cluster, operations, recorder, self._room, replicas, self.aside, keeps=restarts)

    @property
    def flights(self) -> tuple[Flight, ...]:
        """The operations in progress, the oldest first."""
        return tuple(self._flights.values())

    def now_s(self) -> float:
        """Wall seconds since the run began."""
        return self._recorder.now_s()

    @property
    def pending(self) -> int:
        """The number of planned actions that wait for their preconditions."""
        return len(self._pending)

    def busy(self, job_id: int) -> bool:
        """Whether an operation on the job is in progress, or was in progress when the last controller was lost."""
        return self._cluster.jobs[job_id].state.flight is not None

    def flight(self, job_id: int) -> Flight | None:
        """Return the operation in progress on a job."""
        return self._flights.get(job_id)

    def free_mib(self, node: int) -> int:
        """Memory of a node that no guest holds; a guest holds its memory from the first command of its start on."""
        return self._memory_mib[node] - sum(live.held_mib(node) for live in self._cluster.jobs.values())

    def hear(self, event: events.Event) -> None:
        """Act on events of guests, and on jobs that were saved or failed: see `Ledger.listen`."""
        match event:
            case events.Guest() if isinstance(event.typed, Progress | Done):
                self._settle(self._cluster.jobs[event.job])
            case events.Outcome(verb="save", ok=True):
                self._drop_older(self._cluster.jobs[event.job])
                self.replicas.begin(self._cluster.jobs[event.job])
            case events.Job(state="failed"):
                live = self._cluster.jobs[event.job]
                if not live.state.was_done:  # otherwise a late result check failed, and no guests are left
                    self.aside(self._bury(live), f"bury job {live.job_id}")

    def carry_on(self) -> tuple[int, ...]:
        """Continue the operations that were in progress when a controller was lost; return their numbers.

        Operations are idempotent, so each one can be repeated. The clean-up of failed jobs continues, too.
        """
        flights = self._cluster.history.flights
        carried_on = tuple(number for number, state in flights.items() if state.active and not state.withdrawn)
        for number, state in flights.items():
            flight, live = state.flight, self._cluster.jobs[state.job]
            if flight is None:
                continue
            action = PlannedAction(Verb(flight.verb), state.job, flight.nodes, flight.yield_frac)
            if state.ended or state.withdrawn:
                self._recorder.outcome(
                    number, action, elapsed_s=0.0, waited_s=0.0, moved=0, error=_LOST, code=events.CANCELLED, phases={}
                )
                continue
            self._room.order(number, image_needs(action, live.memory_mib, live.image_copies()))
            self._begin(number, live, _Pending(action, self._recorder.now_s(), ()), again=True)
        for live in self._cluster.jobs.values():
            state = live.state
            failed = state.phase is Phase.FAILED and not state.was_done
            if failed and (state.running_on is not None or state.image_holders):
                self.aside(self._bury(live), f"bury job {live.job_id}")
        return carried_on

    def submit(self, actions: Sequence[PlannedAction]) -> None:
        """Replace the plan. Operations in flight continue; actions of the old plan that have not begun are dropped."""
        now_s = self._recorder.now_s()
        self._pending = [
            _Pending(action, now_s, tuple(actions[before] for before in action.after), then_to(actions, place))
            for place, action in enumerate(actions)
        ]
        wanted = {(action.job_id, action.verb) for action in actions}
        self._short = {job: short for job, short in self._short.items() if (job, short[0]) in wanted}
        self.pump()

    def hear_room(self, node: int, free_mib: int | None, taken_ns: int) -> None:
        """Record a node's report of its free image space; `taken_ns` is its time on the event loop's clock."""
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
                live.state.ended
                or live.state.withdrawn  # its planned actions are about to be dropped
                or self.busy(action.job_id)
                or any(id(earlier) in waiting or self._is_flying(earlier) for earlier in pending.waits_for)
                or self._saves_enough(live, action)
                or any(self.free_mib(node) < mib for node, mib in action.needs_mib)
                or not all(self._cluster.reachable(node) for node in touched(live, action))
                or (action.verb in _ARRIVES and not self._cluster.takes_guests(action.nodes))
            )
            if blocked:
                left.append(pending)
            elif self._has_no_room(live, pending):
                left.append(pending)
                if action.verb is Verb.TRANSFER:
                    cannot_move.append(pending)
            else:
                self._launch(live, pending)
        self._pending = [pending for pending in left if not self._cluster.jobs[pending.action.job_id].state.ended]
        for pending in cannot_move:  # last: the decision placed the other actions on these nodes
            self._resume_where_saved(pending)

    def _has_no_room(self, live: LiveJob, pending: _Pending) -> bool:
        """Return whether a node has no space for the images of an action; record each shortage once."""
        action = pending.action
        short = self._room.short(image_needs(action, live.memory_mib, live.image_copies(), pending.then_to))
        if not short:
            return False
        key = (action.verb, tuple((each.node, each.needed_mib) for each in short))
        if self._short.get(live.job_id) != key:
            self._short[live.job_id] = key
            for each in short:
                self._recorder.no_room(live.job_id, action.verb, each)
        for other in self.replicas.kept_at(frozenset(each.node for each in short)):
            self.aside(self.drop_images(other), f"drop kept images of job {other.job_id}")
        return True

    def _resume_where_saved(self, transfer: _Pending) -> None:
        """Restore a job on the nodes that have its images, if it fits there; its new nodes have no space for them.

        Otherwise saved jobs could wait forever for the removal of each other's images.
        """
        live = self._cluster.jobs[transfer.action.job_id]
        (restore,) = (pending for pending in self._pending if transfer.action in pending.waits_for)
        here = live.state.saved_on or ()
        needs = tuple((node, tasks * live.memory_mib) for node, tasks in sorted(Counter(here).items()))
        fits = all(self.free_mib(node) >= mib for node, mib in needs)
        open_here = all(self._cluster.reachable(node) for node in here) and self._cluster.takes_guests(here)
        if here and fits and open_here:
            self._pending = [pending for pending in self._pending if pending not in (transfer, restore)]
            action = replace(restore.action, nodes=here, after=(), needs_mib=needs)
            self._launch(live, _Pending(action, transfer.planned_s, ()))

    def _launch(self, live: LiveJob, pending: _Pending) -> None:
        self._number += 1
        number = self._number
        action = pending.action
        self._short.pop(live.job_id, None)
        self._room.order(number, image_needs(action, live.memory_mib, live.image_copies()))
        self._recorder.intent(number, action, live.guests, images_of(live, action))
        self._begin(number, live, pending)

    def _begin(self, number: int, live: LiveJob, pending: _Pending, *, again: bool = False) -> None:
        action = pending.action
        task = asyncio.create_task(
            self._fly(number, live, pending, again=again), name=f"{action.verb} job {action.job_id}"
        )
        task.add_done_callback(self._over)
        self._flights[action.job_id] = Flight(action, self._recorder.now_s(), task)

    async def _fly(self, number: int, live: LiveJob, pending: _Pending, *, again: bool) -> None:
        action = pending.action
        begin_s, result = self._recorder.now_s(), _Result()
        error: str | None = None
        code = _CODES[action.verb]
        ended_by: str | None = None  # the failure code of the outcome
        stays = lost = False
        full: NoRoomThereError | None = None
        repaired: set[str] = set()
        try:
            if action.verb is not Verb.CAP:  # a cap creates nothing, and must not wait for a disk
                await self._recorder.durable()
            for attempt in itertools.count(1):
                try:
                    result = await (self._do_again(number, live, action) if again else self._do(live, action))
                    error = ended_by = None
                    break
                except TestbedError as failure:
                    error, code = str(failure), failure.failure_code or _CODES[action.verb]
                    stays, lost = isinstance(failure, StaysError), isinstance(failure, LostError)
                    full = failure if isinstance(failure, NoRoomThereError) else None
                    ended_by = events.STAYS if stays else events.NO_ROOM if full else code.value
                    hopeless = isinstance(failure, SaveError) or stays or lost or full is not None
                    if hopeless or not await self._may_retry(live, action, failure, attempt, repaired):
                        break
                    await self._retry(number, action, attempt, error)
        except asyncio.CancelledError:
            error = ended_by = events.CANCELLED
            raise
        except Exception as mistake:  # a programming error: it is journalled, and `_over` ends the run
            error, ended_by = str(mistake) or type(mistake).__name__, code.value
            raise
        finally:
            del self._flights[action.job_id]
            self._room.over(number, int(asyncio.get_running_loop().time() * 1e9))
            self._recorder.outcome(
                number, action, elapsed_s=self._recorder.now_s() - begin_s, waited_s=begin_s - pending.planned_s,
                moved=result.moved, error=error, code=ended_by, phases=result.phases, caps_cores=result.caps_cores,
                reason=result.reason, images=result.images,
            )  # fmt: skip
        if error is not None:
            self._pending = [other for other in self._pending if other.action.job_id != live.job_id]
            if full is not None:
                self._refused(live, action, full)
            elif not stays and (lost or not live.state.finished_tasks):
                self._recorder.fail(live, Failure(code, f"could not {action.verb}: {error}"))
        self._settle(live)
        self.pump()

    def _is_flying(self, action: PlannedAction) -> bool:
        flight = self._flights.get(action.job_id)
        return flight is not None and flight.action is action

    def _saves_enough(self, live: LiveJob, action: PlannedAction) -> bool:
        """Whether a save has to wait because a node of the job already saves as many jobs as it may, of any plan."""
        if action.verb is not Verb.SAVE or self._saves_at_once is None:
            return False
        saving = Counter(
            node
            for flight in self._flights.values()
            if flight.action.verb is Verb.SAVE
            for node in touched(self._cluster.jobs[flight.action.job_id], flight.action)
        )
        return any(saving[node] >= self._saves_at_once for node in touched(live, action))

    async def _retry(self, number: int, action: PlannedAction, attempt: int, error: str) -> None:
        """Record that an attempt failed, and wait until the next one may begin."""
        retry = events.Retry(*self._recorder.times(), action=number, job=action.job_id, attempt=attempt, error=error)
        self._recorder.journal(retry)
        if action.verb is not Verb.CAP:  # a retry begins a new generation, as an intent does
            await self._recorder.durable()
        await asyncio.sleep(0.2 * 2**attempt)

    async def _may_retry(
        self, live: LiveJob, action: PlannedAction, failure: TestbedError, attempt: int, repaired: set[str]
    ) -> bool:  # fmt: skip
        """Return whether to retry an operation after a failure; a damaged image is first fetched again."""
        if live.state.finished_tasks or live.state.failure_code is not None:
            return False
        return await self.replicas.repair(live, action, failure, repaired) or attempt < self._tries

    def _refused(self, live: LiveJob, action: PlannedAction, full: NoRoomThereError) -> None:
        """Record that a node has less image space than it reported; the job waits until the node reports more."""
        self._room.refused(full.node, full.room)
        self._short[live.job_id] = (action.verb, ((full.node, full.room.needed_mib),))
        self._recorder.no_room(live.job_id, action.verb, Shortage(full.node, full.room.needed_mib, full.room.free_mib))

    def _settle(self, live: LiveJob) -> None:
        """Process events that arrived while an operation was in progress."""
        self._operations.let_pass(live)
        if self.busy(live.job_id):
            return
        if live.state.phase is Phase.RUNNING:
            self._close_rescheduling(live)
        state = live.state
        if state.active and not state.withdrawn and len(state.finished_tasks) == len(live.specs):
            self._recorder.job(live, "done")
            self.aside(self.drop_images(live), f"drop images of job {live.job_id}")

    async def _do_again(self, number: int, live: LiveJob, action: PlannedAction) -> _Result:
        """Repeat an action that a lost controller may have completed in part or in full."""
        if action.verb in (Verb.START, Verb.RESTORE):
            there = await self._operations.samples(live, action.nodes)
            at_work = {spec.task for spec in live.specs if spec.guest in there and there[spec.guest].units_done > 0}
            if at_work | live.state.finished_tasks == set(range(len(live.specs))):
                await self._operations.adopt(live, there, _at_present_need(live, action).yield_frac)
                return _Result(sum(image.bytes for image in live.images()) if action.verb is Verb.RESTORE else 0)
            await self._operations.stop(live, action.nodes)
        await self._retry(number, action, 1, _LOST)
        return await self._do(live, action)

    async def _do(self, live: LiveJob, action: PlannedAction) -> _Result:
        """Perform one action once, and return its result."""
        action = _at_present_need(live, action)
        match action.verb:
            case Verb.START:
                await self._operations.start(live, action.nodes, action.yield_frac, ())
            case Verb.CAP:
                found = await self._operations.set_running_cap(live, action.yield_frac)
                return _Result(caps_cores=tuple([found[task] for task in sorted(found)]))
            case Verb.SAVE:
                return await self._save(live, action)
            case Verb.TRANSFER:
                sources = self.replicas.sources(live, action.nodes)
                return _Result(await self._operations.transfer(live, live.images(), action.nodes, sources))
            case Verb.RESTORE:
                images = live.images()
                told = await self._operations.start(live, action.nodes, action.yield_frac, images)
                phases = {name: value for name, value in told.items() if name == "release_skew_s"}
                return _Result(sum(image.bytes for image in images), phases=phases)
            case Verb.MIGRATE:
                return await self._migrate(live, action)
        return _Result()

    async def _migrate(self, live: LiveJob, action: PlannedAction) -> _Result:
        self._close_rescheduling(live)
        begin_s, before = self._recorder.now_s(), _back(live)
        moved = await self._migration.move(live, action.nodes, action.yield_frac)
        if not moved:  # every guest that should move has ended
            return _Result()
        self._cut_off(live, before, begin_s)
        phases = {
            "downtime_s": max(each.downtime_s for each in moved), "migrate_s": max(each.elapsed_s for each in moved),
        }  # fmt: skip
        return _Result(sum(each.bytes for each in moved), MIGRATION, phases=phases)

    async def _save(self, live: LiveJob, action: PlannedAction) -> _Result:
        reason = self._why_saved(live)
        begin_s, before = self._recorder.now_s(), _back(live)
        phases: dict[str, float] = {}
        names = images_of(live, action)
        images = await self._operations.save(live, names, lambda _name, times: phases.update(times))
        self._cut_off(live, before, begin_s)
        return _Result(sum(image.bytes for image in images), reason, images, phases=phases)

    def _why_saved(self, live: LiveJob) -> str:
        wanted, here = live.state.wanted, live.state.running_on
        if wanted is None:
            return PREEMPTION
        stays = here is not None and sorted(here) == sorted(wanted.nodes)
        return PAUSE if stays and self._cluster.history.standstill.hold else MIGRATION

    def _close_rescheduling(self, live: LiveJob) -> None:
        """Record the penalty of an interruption after which the job has progressed, and drop its obsolete images."""
        present = _back(live)
        if present is None or present.back_s is None or not live.advances:
            return
        end_s = max(live.progress.at_s, present.back_s)
        times = self._recorder.times()
        if present.is_rescheduling:
            self._recorder.rescheduling(present.account(events.Rescheduling, times, live.job_id, end_s))
        else:
            self._recorder.journal(present.account(events.Suspension, times, live.job_id, end_s))
        if not self.replicas.keeps:
            self.aside(self.drop_images(live), f"drop images of job {live.job_id}")

    def _cut_off(self, live: LiveJob, present: Interruption | None, at_s: float) -> None:
        """Record that the job was interrupted again before it had progressed."""
        if present is not None and present.measured is None:
            account = present.account(events.ReschedulingCutOff, self._recorder.times(), live.job_id, at_s)
            self._recorder.journal(account)

    def aside(self, work: Coroutine[None, None, None], name: str) -> None:
        """Run a clean-up in the background; `close` waits for it."""
        task = asyncio.create_task(work, name=name)
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        """Report the error of a task that is not awaited to `broken`."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.broken.done():
            self.broken.set_exception(error)

    async def _bury(self, live: LiveJob) -> None:
        """Cancel the operations on a failed job, and destroy its guests and images."""
        await self.withdraw(live)
        await self.drop_images(live)
        self.pump()

    async def withdraw(self, live: LiveJob, clear: Callable[[LiveJob], Awaitable[None]] | None = None) -> None:
        """Cancel the operations in flight or planned for a job, and destroy its guests; its images stay.

        `clear` destroys the guests, and returns when all have certainly ended. Without it, guests may survive on nodes
        that do not answer.
        """
        self._pending = [pending for pending in self._pending if pending.action.job_id != live.job_id]
        flight = self._flights.get(live.job_id)
        if flight is not None:
            flight.task.cancel()
            await asyncio.wait([flight.task])
        state = live.state
        self._cut_off(live, state.present, self._recorder.now_s())
        if state.running_on is not None and clear is not None:
            await clear(live)
        elif state.running_on is not None:
            await self._operations.stop(live, state.running_on)
            if state.migrating_to is not None:  # after the source, so that no guest arrives at the target later
                await self._operations.stop(live, state.migrating_to)
        if state.running_on is not None:
            self._recorder.journal(events.Cleared(*self._recorder.times(), job=live.job_id))

    def drop_images(self, live: LiveJob) -> Coroutine[None, None, None]:
        """Journal that all copies of a job's images are gone; the returned coroutine deletes them."""
        self.replicas.cancel(live)
        holders = frozenset(live.state.image_holders)
        if holders:
            self._recorder.journal(events.ImagesDropped(*self._recorder.times(), job=live.job_id))
        return self._operations.drop_images(holders)

    def _drop_older(self, live: LiveJob) -> None:
        """Delete the images of earlier saves of a job that has been saved again."""
        names = self.replicas.older(live)
        holders = frozenset(holder for holder in live.state.image_holders if holder[1] in names)
        if holders:
            self._recorder.journal(events.ImagesDropped(*self._recorder.times(), job=live.job_id, images=names))
            self.aside(self._operations.drop_images(holders), f"drop older images of job {live.job_id}")

    async def close(self) -> None:
        """Cancel all operations in flight, and wait until they and all clean-ups have ended."""
        self._pending = []
        self.replicas.close()
        under_way = [flight.task for flight in self._flights.values()]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, *self._aside, return_exceptions=True)


def _at_present_need(live: LiveJob, action: PlannedAction) -> PlannedAction:
    """Return an action in progress with the yield of the history, which follows changes of the need: the cap stays."""
    return action if live.state.flight is None else replace(action, yield_frac=live.state.flight.yield_frac)


def _back(live: LiveJob) -> Interruption | None:
    """Return the last interruption of a job that has resumed, but has not progressed since."""
    present = live.state.present
    return None if present is None or present.back_s is None else present
