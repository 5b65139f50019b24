"""The main loop of a live run: waits for events, asks the policy, and hands the plan to the executor."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Mapping
from functools import partial

from testbed.bus.telemetry import Telemetry
from testbed.control.clock import ReplayClock
from testbed.control.cluster import Cluster, LiveJob
from testbed.control.executor import Executor
from testbed.control.losses import Losses
from testbed.control.move_costs import MoveCosts, WayCosts
from testbed.control.orders import Orders
from testbed.control.planner import MoveRules, Target, plan
from testbed.control.recorder import Recorder
from testbed.control.tracker import Tracker
from testbed.lab.ended_by import ended_by_error_of
from testbed.lab.fences import FenceBook
from testbed.lab.fleet import Node
from testbed.lab.live_migration import LiveMigration
from testbed.lab.operations import Operations
from testbed.run import events
from testbed.run.decisions import decision_event
from testbed.run.phases import Phase
from testbed.scenario.schema import DeadlinesTable
from testbed.scheduling.policies.discovering import watches_needs
from testbed.scheduling.policies.view import ClusterView, Event, Policy, WakingPolicy, can_ever_run, event_at

CHECKED_WITHIN_S = 120.0  # timeout of result checks, after the last job has ended


class Conductor:
    """Replays the jobs of a cluster in trace time under one policy, until every job has ended.

    Events that arrive while a plan is in progress are coalesced into the next decision, which is taken at once and is
    based on the intended state. The executor drops actions that the new plan does not contain.
    """

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        clock: ReplayClock,
        operations: Operations,
        recorder: Recorder,
        memory_mib: list[int],
        deadlines: DeadlinesTable,
        migration: LiveMigration,
        live_nodes: frozenset[int] = frozenset(),
        *,
        restarts: bool = False,
        book: FenceBook | None = None,
        replicas: int = 0,
        costs: MoveCosts | None = None,
        saves_at_once: int | None = None,
        ways: WayCosts | None = None,
    ) -> None:
        self.cluster = cluster
        self._costs, self._ways = costs, ways
        for live in cluster.jobs.values():
            self._choose_way(live)
        self.policy = policy
        self.clock = clock
        self._recorder = recorder
        self._operations = operations
        self._wake = asyncio.Event()
        self._live = MoveRules(live_nodes, tuple(memory_mib), saves_at_once)
        self.executor = Executor(
            cluster, operations, migration, recorder, memory_mib, deadlines.tries, replicas, restarts=restarts,
            saves_at_once=saves_at_once,
        )  # fmt: skip
        self.tracker = Tracker(cluster, recorder)
        if watches_needs(policy):
            self.tracker.need_found = self._find_need
        self.losses = Losses(cluster, operations, self.executor, recorder, restarts=restarts, book=book)
        self.orders = Orders(cluster, clock, recorder, self.executor, self._live, self._wake.set)
        for hear in (self.tracker.hear, self.losses.hear, self.executor.hear, self._hear, self.orders.hear):
            recorder.ledger.listen(hear)
        self._coming = [live for live in cluster.jobs.values() if live.state.phase is Phase.COMING]
        self._unknown: list[LiveJob] = []  # submitted, and not reported to the policy yet
        self._completed: list[int] = []
        self._changed = False
        self._found = False  # whether a need was found since the last decision
        self._checked = asyncio.Event()
        self._next_pass = 0
        self._collected_s = 0.0  # trace time of the last collection of events

    def take_over(self) -> None:
        """Continue the replay of a lost controller: report unreported jobs to the policy, and cause a new decision.

        Trace time continues, unless the operator has paused the run.
        """
        trace_s = self.clock.trace_s()
        if self.policy.period_s is not None:
            self._next_pass = math.floor((trace_s + 1e-9) / self.policy.period_s) + 1
        self._collected_s = trace_s
        self._unknown = [live for live in self.cluster.placeable() if live.state.decisions == 0]
        if not self.orders.take_over():
            self.clock.go_on()
        self._change()

    def arrive(self, live: LiveJob) -> None:
        """Add a new job that a user submits to a served lab now."""
        self.cluster.add(live)
        self._choose_way(live)
        self.tracker.follow(live)
        self.losses.know(live)
        self._unknown.append(live)
        self._recorder.job(live, "submitted")
        self._wake.set()

    def _choose_way(self, live: LiveJob) -> None:
        """Set whether a job migrates live: with the mechanism `cheaper` only if that costs less than images."""
        live.prefers_live = self._ways is None or self._ways.live_is_cheaper(live.job, live.most_dirty_mib_per_s)

    def telemetry(self, node: Node, record: Telemetry, taken_ns: int) -> None:
        """Process a node's telemetry sample; see `Tracker.telemetry`."""
        self.tracker.telemetry(node, record, taken_ns)
        if not record.late:
            self.executor.hear_room(node.index, record.image_free_mib, taken_ns)

    async def run(self) -> None:
        """Replay until every job has ended. Cancellation leaves the guests to the caller.

        The caller has to call `close` in any case. Raises `RunStoppedError` when the operator has stopped the run and
        the running jobs are saved, and the error of an operation that is not the failure of a command.
        """
        async with ended_by_error_of(self.executor.broken):
            while not self.cluster.finished:
                await self._sleep()
                if self.orders.hold():
                    continue
                event = self._collect()
                if event != Event() or self._found:
                    self._decide(event)
            await self._until_checked()

    async def close(self) -> None:
        """Cancel all operations in progress, and wait until they have ended."""
        self.losses.close()
        await self.executor.close()

    async def _until_checked(self) -> None:
        """Wait for results that are still being checked; journal the tasks whose check exceeds the timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CHECKED_WITHIN_S):
                while any(live.state.unchecked for live in self.cluster.jobs.values()):
                    self._checked.clear()
                    await self._checked.wait()
        for live in self.cluster.jobs.values():
            if live.state.unchecked:
                tasks = tuple(sorted(live.state.unchecked))
                self._recorder.journal(events.Unchecked(*self._recorder.times(), job=live.job_id, tasks=tasks))

    def _hear(self, event: events.Event) -> None:
        """Wake the conductor for an event that needs a new decision: see `Ledger.listen`."""
        match event:
            case events.Guest():
                self._checked.set()
            case events.Job(state="done" | "failed"):
                if event.state == "done" or not self.cluster.jobs[event.job].state.was_done:
                    self._completed.append(event.job)
                    self._wake.set()
            case events.Job(state="again") | events.Node() | events.Returned(reachable=True):
                self._change()
            case events.Order(order="drain" | "return"):
                self._change()
            case events.Order(order="close"):
                self._wake.set()  # the run may have waited for this order alone
            case events.Outcome(ok=False, code=events.STAYS | events.NO_ROOM):
                self._change()

    def _change(self) -> None:
        """Request a new decision after a failed operation or a change."""
        self._changed = True
        self._wake.set()

    def _find_need(self) -> None:
        """Request a decision with a new need, and without an event, as in simulations: yields change, places do not."""
        self._found = True
        self._wake.set()

    async def _sleep(self) -> None:
        """Wait for the next submission, periodic pass or event."""
        waits = [] if self.clock.stands else self._waits_s()
        try:
            async with asyncio.timeout(min(waits, default=None)):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    def _waits_s(self) -> list[float]:
        waits = []
        if self._coming:
            waits.append(self.clock.until_s(self._coming[0].job.submit_time_s))
        if self.policy.period_s is not None:
            waits.append(self.clock.until_s(self._next_pass * self.policy.period_s))
        if isinstance(self.policy, WakingPolicy):
            wake_s = self.policy.next_wake_s(self._view(self._collected_s))
            if wake_s is not None:
                waits.append(self.clock.until_s(wake_s))
        return waits

    def _collect(self) -> Event:
        """Coalesce all events so far into one."""
        now_s = self.clock.trace_s()
        while self._coming and self._coming[0].job.submit_time_s <= now_s + 1e-9:
            live = self._coming.pop(0)
            self._unknown.append(live)
            self._recorder.job(live, "submitted")
        periodic = False
        period_s = self.policy.period_s
        if period_s is not None and now_s + 1e-9 >= self._next_pass * period_s:
            self._next_pass = math.floor((now_s + 1e-9) / period_s) + 1
            periodic = bool(self.cluster.active())
        changed, self._changed = self._changed, False
        more = bool(self._coming) or self.cluster.history.awaits_jobs
        self.losses.sort_out(partial(can_ever_run, self.policy), more=more)
        submitted = [live.job_id for live in self._unknown if not live.state.stranded]
        self._unknown = [live for live in self._unknown if live.state.stranded and not live.state.ended]
        completed, self._completed = self._completed, []
        since_s, self._collected_s = self._collected_s, now_s + 1e-9
        return event_at(
            self.policy, self._view(self._collected_s), since_s,
            completed=completed, submitted=submitted, periodic=periodic, changed=changed,
        )  # fmt: skip

    def _decide(self, event: Event) -> None:
        self._found = False
        view = self._view(self.clock.trace_s())
        begin_s = time.perf_counter()
        decision = self.policy.decide(view, event)
        decide_s = time.perf_counter() - begin_s
        before = self.cluster.targets()
        self._recorder.journal(
            decision_event(self._recorder.times(), decide_s, self.policy.name, view, event, decision)
        )
        for job_id, need_frac in zip(view.job_id.tolist(), view.cpu_need_frac.tolist(), strict=True):
            self.cluster.jobs[job_id].take_need(need_frac)
        targets = self.cluster.targets()
        self._note(before, targets)
        self._recorder.decision(self.cluster.active(), targets, decide_s)
        movable = self.cluster.movable()
        for live in movable:
            self._choose_way(live)  # at the rates at which they write now
        self.executor.submit(plan([live.status() for live in movable], targets, self._live))

    def _view(self, trace_s: float) -> ClusterView:
        now_s = self._recorder.now_s()
        return self.cluster.view(
            trace_s, now_s, self.clock.time_scale, estimates=self.policy.needs_estimates, costs=self._costs
        )

    def _note(self, earlier: Mapping[int, Target], targets: Mapping[int, Target]) -> None:
        """Log a decision for the user; `earlier` are the targets of the previous one."""
        for live in self.cluster.active():
            before, after = earlier.get(live.job_id), targets.get(live.job_id)
            if after is None:
                if before is not None:
                    self._recorder.job(live, "paused")
            elif not live.state.was_started:
                self._recorder.job(live, "running", self._where(after))
            elif before is None:
                self._recorder.job(live, "resumed", self._where(after))
            elif sorted(before.nodes) != sorted(after.nodes):
                self._recorder.job(live, "moving", self._where(after))

    def _where(self, target: Target) -> str:
        return f"{self._recorder.where(target.nodes)} at yield {target.yield_frac:.2f}"
