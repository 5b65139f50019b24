"""The heart of a live run: waits for what happens, asks the policy, and hands the plan to the executor."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable

from testbed.bus.telemetry import Telemetry
from testbed.control.clock import ReplayClock
from testbed.control.cluster import Cluster, LiveJob, Phase
from testbed.control.decisions import decision_entry
from testbed.control.executor import Executor
from testbed.control.fleet import Node
from testbed.control.live_migration import LiveMigration
from testbed.control.losses import Losses
from testbed.control.operations import Operations
from testbed.control.planner import LiveNodes, Target, plan
from testbed.control.recorder import Recorder
from testbed.control.scenario import DeadlinesTable
from testbed.control.tracker import Tracker
from testbed.failure_codes import Failure
from testbed.policies.view import ClusterView, Event, Policy, WakingPolicy

CHECKED_WITHIN_S = 120.0  # after the last job has ended


class Conductor:
    """Replays the jobs of a cluster in trace time under one policy, until every job has ended.

    Events that arrive while a plan is under way are coalesced into the next decision, which is taken at once and sees
    the intended state; the executor forgets what the new plan no longer wants.
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
        resign: Callable[[], None] = lambda: None,
    ) -> None:
        self.cluster = cluster
        self.policy = policy
        self.clock = clock
        self._recorder = recorder
        self._operations = operations
        self._resign = resign
        self._live = LiveNodes(live_nodes, tuple(memory_mib))
        self.executor = Executor(
            cluster, operations, migration, recorder, memory_mib, deadlines.tries, self.fail_job, self._settled,
            self._change,
        )  # fmt: skip
        self.tracker = Tracker(
            cluster, recorder, self.executor.settle, self._all_tasks_done, self._task_failed, self._result_checked
        )
        self.losses = Losses(
            cluster, operations, self.executor, recorder, self.tracker.follow, self.fail_job, self._change,
            restarts=restarts,
        )  # fmt: skip
        self._coming = [live for live in cluster.jobs.values() if live.phase is Phase.COMING]
        self._unknown: list[LiveJob] = []  # submitted, and not told to the policy yet
        self._completed: list[int] = []
        self._changed = False
        self._wake = asyncio.Event()
        self._checked = asyncio.Event()
        self._next_pass = 0
        self._collected_s = 0.0  # trace time of the last look at what has happened

    def telemetry(self, node: Node, record: Telemetry, taken_ns: int) -> None:
        """Take a node's sample of the second; see `Tracker.telemetry`."""
        self.tracker.telemetry(node, record, taken_ns)
        if not record.late:
            self.executor.hear_room(node.index, record.image_free_mib, taken_ns)

    async def run(self) -> None:
        """Replay until every job has ended; cancellation leaves the guests to the caller's clean-up."""
        try:
            while not self.cluster.finished:
                await self._sleep()
                event = self._collect()
                if event != Event():
                    self._decide(event)
            await self._until_checked()
        finally:
            self._resign()
            await self.executor.close()

    async def _until_checked(self) -> None:
        """Wait for results that are still being checked; what is not told in time is left as it is, and journalled."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CHECKED_WITHIN_S):
                while any(live.unchecked for live in self.cluster.jobs.values()):
                    self._checked.clear()
                    await self._checked.wait()
        for live in self.cluster.jobs.values():
            if live.unchecked:
                self._recorder.journal("unchecked", job=live.job_id, tasks=sorted(live.unchecked))

    def fail_job(self, live: LiveJob, why: Failure) -> None:
        """Record that a job failed, and destroy what is left of it; the run goes on."""
        if live.failure is not None or live.withdrawn:
            return
        live.failure = why
        if live.ended:  # its result was found wrong only now
            live.phase = Phase.FAILED
            self._recorder.failed_job(live, why)
            return
        live.phase, live.intended = Phase.FAILED, None
        live.end_trace_s = self.clock.trace_s()
        self._recorder.failed_job(live, why)
        self._completed.append(live.job_id)
        self.executor.bury(live)
        self._wake.set()

    def _task_failed(self, live: LiveJob, why: Failure) -> None:
        self.losses.task_failed(live, why)

    def _result_checked(self, _live: LiveJob) -> None:
        self._checked.set()

    def _all_tasks_done(self, live: LiveJob) -> None:
        self.executor.settle(live)

    def _settled(self, live: LiveJob) -> None:
        """No operation on the job is under way: if all its tasks have ended, so has it, unless it is withdrawn."""
        if live.ended or live.withdrawn or len(live.finished_tasks) < len(live.specs):
            return
        live.phase, live.intended, live.running_on, live.migrating_to = Phase.DONE, None, None, None
        live.end_trace_s = self.clock.trace_s()
        self._recorder.job(live, "done")
        self.executor.aside(self.executor.forget(live), f"forget job {live.job_id}")
        self._completed.append(live.job_id)
        self._wake.set()

    def _change(self) -> None:
        self._changed = True
        self._wake.set()

    async def _sleep(self) -> None:
        """Wait for the next submission, periodic pass or event."""
        waits = []
        if self._coming:
            waits.append(self.clock.until_s(self._coming[0].job.submit_time_s))
        if self.policy.period_s is not None:
            waits.append(self.clock.until_s(self._next_pass * self.policy.period_s))
        if isinstance(self.policy, WakingPolicy):
            wake_s = self.policy.next_wake_s(self._view(self._collected_s))
            if wake_s is not None:
                waits.append(self.clock.until_s(wake_s))
        try:
            async with asyncio.timeout(min(waits, default=None)):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    def _collect(self) -> Event:
        """Coalesce all that has happened by now into one event."""
        now_s = self.clock.trace_s()
        while self._coming and self._coming[0].job.submit_time_s <= now_s + 1e-9:
            live = self._coming.pop(0)
            live.phase = Phase.WAITING
            self._unknown.append(live)
            self._recorder.job(live, "submitted")
        periodic = False
        period_s = self.policy.period_s
        if period_s is not None and now_s + 1e-9 >= self._next_pass * period_s:
            self._next_pass = math.floor((now_s + 1e-9) / period_s) + 1
            periodic = bool(self.cluster.active())
        changed, self._changed = self._changed, False
        self.losses.sort_out(self.policy.can_ever_run, more=bool(self._coming))
        submitted = [live.job_id for live in self._unknown if not live.stranded]
        self._unknown = [live for live in self._unknown if live.stranded and not live.ended]
        completed, self._completed = self._completed, []
        since_s, self._collected_s = self._collected_s, now_s + 1e-9
        if isinstance(self.policy, WakingPolicy):
            submitted += self.policy.retried(self._view(self._collected_s), since_s)
        return Event(tuple(completed), tuple(submitted), periodic, changed)

    def _decide(self, event: Event) -> None:
        now_s = self._recorder.now_s()
        view = self._view(self.clock.trace_s())
        event = Event(
            event.completed,
            tuple(job for job in event.submitted if self.cluster.jobs[job] in self.cluster.placeable()),
            event.periodic,
            event.changed,
        )
        begin_s = time.perf_counter()
        decision = self.policy.decide(view, event)
        decide_s = time.perf_counter() - begin_s
        self._recorder.journal("decision", decide_s=decide_s, **decision_entry(self.policy.name, view, event, decision))
        targets = self.cluster.targets(view, decision)
        self._intend(targets, now_s)
        self._recorder.decision(self.cluster.active(), targets, decide_s)
        self.executor.submit(plan([live.status() for live in self.cluster.placeable()], targets, self._live))

    def _view(self, trace_s: float) -> ClusterView:
        now_s = self._recorder.now_s()
        return self.cluster.view(trace_s, now_s, self.clock.time_scale, estimates=self.policy.needs_estimates)

    def _intend(self, targets: dict[int, Target], now_s: float) -> None:
        """Write the decision into the cluster's intended state, and note what that means to a person."""
        for live in self.cluster.active():
            before, after = live.intended, targets.get(live.job_id)
            live.intended = after
            if after is None:
                if before is not None:
                    self._recorder.job(live, "paused")
                continue
            if not live.was_started:
                live.was_started = True
                live.start_trace_s = self.clock.trace_s()
                self._recorder.job(live, "running", self._where(after))
            elif before is None:
                self._recorder.job(live, "resumed", self._where(after))
                record = live.reschedulings[-1] if live.reschedulings else None
                if record is not None and record.wanted_s is None:
                    record.wanted_s = now_s
            elif sorted(before.nodes) != sorted(after.nodes):
                self._recorder.job(live, "moving", self._where(after))

    def _where(self, target: Target) -> str:
        return f"{self._recorder.where(target.nodes)} at yield {target.yield_frac:.2f}"
