"""Any policy through a whole trace: the loop of the live world in virtual time, one view and one event an instant.

Plug-in policies are simulated by it. It works on views where the compiled loop works on arrays, and comes to the
same instants: each is the other's check.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, inf, isinf, nan

import numpy as np

from testbed.errors import RunError
from testbed.policies.view import (
    NOT_PLACED,
    ClusterView,
    Decision,
    Floats,
    Ints,
    JobState,
    Policy,
    WakingPolicy,
    event_at,
)
from testbed.simulation.overheads import OverheadTable, overhead_s, progress_rate
from testbed.simulation.run import MIGRATION, PREEMPTION, Moves, SimulatedRun
from testbed.workload.jobs import Job

_PATIENCE = 100_000  # decisions in a row without progress
_TOLERANCE = 1e-8


@dataclass(slots=True)
class _Life:
    """One job in the simulation."""

    row: int
    job: Job
    nodes: Ints
    state: JobState = JobState.WAITING
    share: float = 0.0
    speed: float = 0.0  # progress at this share
    virtual_time_s: float = 0.0
    start_s: float = nan
    end_s: float = nan
    free_at_s: float = -inf
    saved_at_s: float = -inf
    penalty_s: float = 0.0
    preemptions: int = 0
    migrations: int = 0
    tasks_moved: int = 0

    def expected_end_s(self, now_s: float) -> float:
        if self.speed <= 0.0:
            return inf
        left_s = max(self.job.run_time_s - self.virtual_time_s, 0.0)
        return max(now_s, self.free_at_s) + left_s / self.speed

    def advance(self, now_s: float, until_s: float) -> None:
        if self.state is JobState.RUNNING:
            from_s = min(max(now_s, self.free_at_s), until_s)
            self.penalty_s += from_s - now_s
            self.virtual_time_s += self.speed * (until_s - from_s)


@dataclass(frozen=True, slots=True)
class Placement:
    """What a decision gave to an active job: its tasks on `nodes` (empty if it does not run), from `time_s` on.

    It makes no progress before `free_at_s`, when its last penalty ends; -infinite if it never had one. Progress after
    it is at `yield_frac`, or at what an overhead model says of that yield. Times are
    trace seconds; `row` is the job's place in the trace.
    """

    time_s: float
    row: int
    nodes: tuple[int, ...]
    yield_frac: float
    free_at_s: float


def simulate_by_views(
    jobs: Sequence[Job],
    nodes: int,
    policy: Policy,
    overheads: OverheadTable,
    *,
    debug: bool = False,
    record: Callable[[Placement], None] | None = None,
) -> SimulatedRun:
    """Run `jobs`, in order of submission, under `policy`; `record` is told of every active job after every decision.

    Raises RunError when jobs wait for ever, when no job progresses any more, and with `debug` when a decision exceeds
    the memory or the CPU of a node.
    """
    return _Loop(jobs, nodes, policy, overheads, debug=debug, record=record).run()


@dataclass(slots=True)
class _Timing:
    decisions: int = 0
    total_s: float = 0.0
    max_s: float = 0.0

    def add(self, took_s: float) -> None:
        self.decisions += 1
        self.total_s += took_s
        self.max_s = max(self.max_s, took_s)


@dataclass(slots=True)
class _History:
    """Preemptions and migrations: time, row, kind, tasks."""

    events: list[tuple[float, int, int, int]] = field(default_factory=list)

    def moves(self) -> Moves:
        if not self.events:
            return Moves.none()
        times, rows, kinds, tasks = zip(*self.events, strict=True)
        return Moves(
            time_s=np.array(times, dtype=np.float64),
            row=np.array(rows, dtype=np.int64),
            kind=np.array(kinds, dtype=np.int64),
            tasks=np.array(tasks, dtype=np.int64),
        )


class _Loop:
    def __init__(
        self,
        jobs: Sequence[Job],
        nodes: int,
        policy: Policy,
        overheads: OverheadTable,
        *,
        debug: bool,
        record: Callable[[Placement], None] | None,
    ) -> None:
        self.record = record
        self.nodes, self.policy, self.debug = nodes, policy, debug
        self.penalties, self.beyond = overheads
        self.lives = [_Life(row, job, np.full(job.tasks, NOT_PLACED)) for row, job in enumerate(jobs)]
        self.to_come = self.lives[::-1]
        self.active: list[_Life] = []
        self.now_s = jobs[0].submit_time_s
        self.timing = _Timing()
        self.history = _History()
        self.idle_decisions = 0
        self.held_until_s: dict[int, float] = {}  # by node, until who left it is saved

    def run(self) -> SimulatedRun:
        while self.active or self.to_come:
            self.step()
        return SimulatedRun(
            policy=self.policy.name,
            nodes=self.nodes,
            jobs=tuple(life.job for life in self.lives),
            start_s=self.floats("start_s"),
            end_s=self.floats("end_s"),
            virtual_time_s=self.floats("virtual_time_s"),
            preemptions=self.ints("preemptions"),
            migrations=self.ints("migrations"),
            penalty_s=self.floats("penalty_s"),
            tasks_moved=self.ints("tasks_moved"),
            moves=self.history.moves(),
            decisions=self.timing.decisions,
            decide_total_s=self.timing.total_s,
            decide_max_s=self.timing.max_s,
        )

    def floats(self, name: str) -> Floats:
        return np.array([getattr(life, name) for life in self.lives], dtype=np.float64)

    def ints(self, name: str) -> Ints:
        return np.array([getattr(life, name) for life in self.lives], dtype=np.int64)

    def step(self) -> None:
        """Go to the next event and answer it."""
        submit_s = self.to_come[-1].job.submit_time_s if self.to_come else inf
        tick_s = self.next_tick_s(submit_s)
        expected_s = {life.row: life.expected_end_s(self.now_s) for life in self.active}
        time_s = min(submit_s, tick_s, self.next_wake_s(), *expected_s.values())
        if isinf(time_s):
            raise RunError(f"{self.place()}: jobs are left to wait for ever: job {self.active[0].job.job_id}")
        before_s = self.now_s
        for life in self.active:
            life.advance(self.now_s, time_s)
        self.now_s = time_s
        ended = [life for life in self.active if expected_s[life.row] <= time_s]
        for life in ended:
            if self.debug and abs(life.virtual_time_s - life.job.run_time_s) > 1e-6 * max(life.job.run_time_s, 1.0):
                raise RunError(
                    f"{self.place()}: job {life.job.job_id} ends with {life.virtual_time_s} s of virtual time"
                )
            life.end_s, life.virtual_time_s = time_s, life.job.run_time_s
            self.active.remove(life)
        new: list[_Life] = []
        while self.to_come and self.to_come[-1].job.submit_time_s <= time_s:
            new.append(self.to_come.pop())
        self.active += new
        if self.active:
            self.watch_progress(ended, new)
            self.decide(ended, new, before_s, periodic=time_s == tick_s)

    def next_tick_s(self, submit_s: float) -> float:
        """Return the next multiple of the period; an empty cluster needs no pass."""
        period_s = self.policy.period_s
        if not period_s or (not self.active and isinf(submit_s)):
            return inf
        if not self.active:
            return next(k * period_s for k in _from(ceil(submit_s / period_s)) if k * period_s >= submit_s)
        return next(k * period_s for k in _from(floor(self.now_s / period_s)) if k * period_s > self.now_s)

    def next_wake_s(self) -> float:
        if not self.active or not isinstance(self.policy, WakingPolicy):
            return inf
        wake_s = self.policy.next_wake_s(self.view())
        return inf if wake_s is None else wake_s

    def view(self) -> ClusterView:
        jobs = [life.job for life in self.active]
        known = self.policy.needs_estimates
        return ClusterView(
            time_s=self.now_s,
            node_available=np.ones(self.nodes, dtype=np.bool_),
            job_id=np.array([job.job_id for job in jobs], dtype=np.int64),
            submit_time_s=np.array([job.submit_time_s for job in jobs], dtype=np.float64),
            tasks=np.array([job.tasks for job in jobs], dtype=np.int64),
            cpu_need_frac=np.array([job.cpu_need_frac for job in jobs], dtype=np.float64),
            mem_req_frac=np.array([job.mem_req_frac for job in jobs], dtype=np.float64),
            virtual_time_s=np.array([life.virtual_time_s for life in self.active], dtype=np.float64),
            state=np.array([life.state for life in self.active], dtype=np.int8),
            task_node=np.concatenate([life.nodes for life in self.active]),
            start_time_s=np.array([life.start_s for life in self.active], dtype=np.float64),
            estimate_s=np.array([job.batch_estimate_s if known else nan for job in jobs], dtype=np.float64),
        )

    def decide(self, ended: list[_Life], new: list[_Life], before_s: float, *, periodic: bool) -> None:
        view = self.view()
        event = event_at(
            self.policy, view, before_s, completed=[life.job.job_id for life in ended],
            submitted=[life.job.job_id for life in new], periodic=periodic,
        )  # fmt: skip
        begun_s = time.perf_counter()
        decision = self.policy.decide(view, event)
        self.timing.add(time.perf_counter() - begun_s)
        if self.debug:
            self.check(decision)
        self.apply(decision)
        if self.record is not None:
            for life in self.active:
                nodes = tuple(life.nodes.tolist()) if life.state is JobState.RUNNING else ()
                self.record(Placement(self.now_s, life.row, nodes, life.share, life.free_at_s))

    def apply(self, decision: Decision) -> None:
        begin = 0
        arrivals: list[tuple[_Life, Floats | None, Counter[int]]] = []
        departures: list[tuple[_Life, Counter[int]]] = []
        for life, share in zip(self.active, decision.yield_frac, strict=True):
            nodes = decision.task_node[begin : begin + life.job.tasks]
            begin += life.job.tasks
            life.share = life.speed = float(share)
            if self.beyond.bends and life.share > 0.0:
                life.speed = progress_rate(self.beyond, life.job.tasks, life.share)
            was, runs = life.state, bool(nodes[0] != NOT_PLACED)
            old, new = Counter(life.nodes.tolist()), Counter(nodes.tolist())
            life.nodes = nodes.copy()
            if runs:
                life.state = JobState.RUNNING
                if was is JobState.WAITING:
                    life.start_s = self.now_s
                    arrivals.append((life, self.beyond.start_s if self.beyond.starts else None, new))
                elif was is JobState.PAUSED:
                    arrivals.append((life, self.penalties.resume_s, new))
                elif came := new - old:
                    arrivals.append((life, self.penalties.migration_s, came))
                    departures.append((life, old - new))
                    life.migrations += 1
                    self.log(life, MIGRATION, came.total())
            elif was is JobState.RUNNING:
                life.state = JobState.PAUSED
                departures.append((life, old))
                life.preemptions += 1
                self.log(life, PREEMPTION, life.job.tasks)
        if self.beyond.saves:
            self.hold_places(departures)
        self.begin_moves(arrivals)

    def hold_places(self, departures: list[tuple[_Life, Counter[int]]]) -> None:
        """Note until when tasks that leave still hold their nodes."""
        leaving = sum((left for _, left in departures), Counter[int]())
        for life, left in departures:
            saved_at_s = self.now_s
            for node in left:
                with_it = leaving[node] if self.beyond.per_node else leaving.total()
                took_s = overhead_s(self.penalties, self.beyond.save_s, float(with_it), life.job.mem_req_frac)
                saved_at_s = max(saved_at_s, self.now_s + took_s)
                self.held_until_s[node] = max(self.held_until_s.get(node, -inf), self.now_s + took_s)
            if life.state is JobState.PAUSED:
                life.saved_at_s = saved_at_s

    def begin_moves(self, arrivals: list[tuple[_Life, Floats | None, Counter[int]]]) -> None:
        """Begin the penalties of jobs that came to nodes; starts that are free only wait."""
        coming = sum((came for _, seconds, came in arrivals if seconds is not None), Counter[int]())
        for life, seconds, came in arrivals:
            held_s = (self.held_until_s.get(node, -inf) for node in came)
            begin_s = max(self.now_s, life.saved_at_s, *held_s)
            if seconds is not None:
                with_it = max(coming[node] for node in came) if self.beyond.per_node else coming.total()
                took_s = overhead_s(self.penalties, seconds, float(with_it), life.job.mem_req_frac)
                life.free_at_s = begin_s + took_s
            elif begin_s > self.now_s:
                life.free_at_s = begin_s

    def log(self, life: _Life, kind: int, tasks: int) -> None:
        life.tasks_moved += tasks
        self.history.events.append((self.now_s, life.row, kind, tasks))

    def check(self, decision: Decision) -> None:
        """Raise RunError for a decision that no cluster could carry out."""
        needs = {
            "memory": [life.job.mem_req_frac for life in self.active],
            "CPU": [
                life.job.cpu_need_frac * share for life, share in zip(self.active, decision.yield_frac, strict=True)
            ],
        }
        tasks = [life.job.tasks for life in self.active]
        rows = np.repeat(np.arange(len(tasks)), tasks)
        placed = decision.task_node != NOT_PLACED
        for row, life in enumerate(self.active):
            mine, share = placed[rows == row], decision.yield_frac[row]
            if mine.any() != mine.all() or not (0.0 <= share <= 1.0) or (share > 0.0 and not mine.all()):
                raise RunError(f"{self.place()}: job {life.job.job_id} has yield {share} and {mine.sum()} tasks placed")
        for what, amounts in needs.items():
            used = np.bincount(decision.task_node[placed], np.repeat(amounts, tasks)[placed], self.nodes)
            if used.size > self.nodes or used.max() > 1.0 + _TOLERANCE:
                node = int(used.argmax()) if used.size == self.nodes else int(decision.task_node.max())
                job = self.active[int(rows[decision.task_node == node][0])].job
                raise RunError(
                    f"{self.place()}: job {job.job_id} is on node {node}, of which {used[node]} {what} is used"
                )

    def watch_progress(self, ended: list[_Life], new: list[_Life]) -> None:
        moves = any(life.share > 0.0 and life.free_at_s < self.now_s for life in self.active)
        self.idle_decisions = 0 if ended or new or moves else self.idle_decisions + 1
        if self.idle_decisions > _PATIENCE:
            raise RunError(f"{self.place()}: no job progresses any more: job {self.active[0].job.job_id}")

    def place(self) -> str:
        return f"policy {self.policy.name!r} at {self.now_s:.17g} s"


def _from(quotient: int) -> range:
    """Return candidates around a quotient that may have been rounded up."""
    return range(quotient - 1, quotient + 3)
