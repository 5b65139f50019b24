"""Simulation of jobs that compete by shares: bulk-synchronous jobs, and the exchange of their shares [DPS].

The model is fluid. A task that computes gets a part of its node: its share over the shares of all tasks that compute
there. A task of a parallel job waits for its neighbours after each iteration, so all tasks advance at the rate
of the slowest one, and the others compute for a part of the time only. The exchange itself is that of the agents
(`testbed.shares`), without delays and losses.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from testbed.bus.limits import MOST_EVENTS
from testbed.errors import RunError
from testbed.scheduling.policies.capacity import offsets
from testbed.scheduling.policies.view import NOT_PLACED, ClusterView, Event, Ints, JobState, SharingPolicy
from testbed.scheduling.simulation.batch import BatchSchedule, undisturbed_run
from testbed.scheduling.simulation.ranks import SharingModel
from testbed.scheduling.simulation.run import ShareTransfer, SimulatedRun
from testbed.scheduling.workload.jobs import Job
from testbed.shares.formulas import cores_of, shares_of
from testbed.shares.messages import ExchangeMessage, Receipt, Transfer
from testbed.shares.node import BANK, NodeExchange, Use
from testbed.shares.state import AccountState

_LEAST_SHARE = 2 / (1 << 18)  # the least weight of a control group
_ROUNDS, _CLOSE = 200, 1e-9  # limits of the fixed-point iteration for rates
_ROUNDING_S = 1e-9


@dataclass(slots=True, eq=False)
class _Live:
    """A running job: its tasks' nodes, the work of a task per second of virtual time, and its accounts by node."""

    row: int
    job: Job
    nodes: tuple[int, ...]
    work: tuple[float, ...]
    exchanges: Mapping[int, NodeExchange]
    next_s: float
    grant_s: float
    number: int = 0
    done_s: float = 0.0  # virtual time
    rate: float = 0.0  # of virtual time
    speeds: list[float] = field(default_factory=list)  # of each task while it computes, in nodes

    @property
    def shares(self) -> list[float]:
        """Shares by task, as fractions of a node."""
        found = {name: shares for each in self.exchanges.values() for name, shares in each.shares().items()}
        return [found[str(task)] / shares_of(1.0) for task in range(len(self.nodes))]

    @property
    def use(self) -> list[float]:
        """CPU use of each task, as a fraction of its node."""
        return [self.rate * work for work in self.work]

    @property
    def slowest(self) -> int:
        """The slowest task, for which the others wait."""
        return min(range(len(self.nodes)), key=lambda task: self.speeds[task] / self.work[task])


def simulate_sharing(
    jobs: Sequence[Job], nodes: int, policy: SharingPolicy, model: SharingModel, *, record: bool = False
) -> SimulatedRun:
    """Run `jobs`, sorted by submission, on `nodes` nodes; starts are free. Raises RunError if jobs wait for ever."""
    world = _World(jobs, nodes, policy, model, record=record)
    world.run()
    run = undisturbed_run(policy.name, nodes, jobs, world.schedule(), record=record)
    return replace(run, share_transfers=tuple(world.transfers))


class _World:
    def __init__(
        self, jobs: Sequence[Job], nodes: int, policy: SharingPolicy, model: SharingModel, *, record: bool
    ) -> None:  # fmt: skip
        self._record = record
        self.transfers: list[ShareTransfer] = []  # if they are to be recorded
        self._jobs, self._nodes, self._policy, self._model = jobs, nodes, policy, model
        self._waiting: list[int] = []
        self._live: dict[int, _Live] = {}
        self._places: dict[int, tuple[int, ...]] = {}
        self._to_come = 0
        self.start_s = np.full(len(jobs), np.nan)
        self.end_s = np.full(len(jobs), np.nan)
        self.decisions, self.decide_s, self.most_decide_s = 0, 0.0, 0.0

    def run(self) -> None:
        """Simulate event after event until all jobs have ended."""
        now_s, events = self._jobs[0].submit_time_s, 0
        while True:
            changed = self._end(now_s) | self._submit(now_s)
            if self._to_come == len(self._jobs) and not self._waiting and not self._live:
                return
            if changed:
                self._decide(now_s)
            if self._drift() | self._exchange(now_s) or changed:
                self._set_rates()
                self._tell(now_s)
            next_s = self._next_s(now_s)
            if not np.isfinite(next_s):
                names = ", ".join(str(self._jobs[row].job_id) for row in self._waiting)
                raise RunError(f"policy {self._policy.name!r}: jobs are left to wait for ever: {names}")
            events += 1
            if events > MOST_EVENTS:
                raise RunError(f"policy {self._policy.name!r}: {MOST_EVENTS} events, and no end")
            for live in self._live.values():
                live.done_s += live.rate * (next_s - now_s)
            now_s = next_s

    def schedule(self) -> BatchSchedule:
        """Return the times and nodes of all jobs."""
        nodes: Ints = np.array([node for row in range(len(self._jobs)) for node in self._places[row]], dtype=np.int64)
        nothing = np.zeros(len(self._jobs))
        return BatchSchedule(
            self.start_s, self.end_s, nothing, nodes, self.decisions, self.decide_s, self.most_decide_s
        )

    def _end(self, now_s: float) -> bool:
        ended = [row for row, live in self._live.items() if live.done_s >= live.job.run_time_s - _ROUNDING_S]
        for row in ended:
            self.end_s[row] = now_s
            del self._live[row]
        return bool(ended)

    def _submit(self, now_s: float) -> bool:
        first = self._to_come
        while self._to_come < len(self._jobs) and self._jobs[self._to_come].submit_time_s <= now_s:
            self._waiting.append(self._to_come)
            self._to_come += 1
        return self._to_come > first

    def _next_s(self, now_s: float) -> float:
        ends = [now_s + (live.job.run_time_s - live.done_s) / live.rate for live in self._live.values()]
        moves = [s for live in self._live.values() for s in (live.next_s, live.grant_s)]
        moves += [now_s + self._model.until_move_s(live.job, live.done_s) / live.rate for live in self._live.values()]
        coming = [self._jobs[self._to_come].submit_time_s] if self._to_come < len(self._jobs) else []
        return min([*ends, *moves, *coming], default=np.inf)

    def _decide(self, now_s: float) -> None:
        rows = sorted([*self._waiting, *self._live])
        began_s = time.perf_counter()
        decision = self._policy.decide(self._view(rows, now_s), Event(changed=True))
        took_s = time.perf_counter() - began_s
        self.decisions += 1
        self.decide_s, self.most_decide_s = self.decide_s + took_s, max(self.most_decide_s, took_s)
        offset = offsets(np.array([self._jobs[row].tasks for row in rows], dtype=np.int64))
        for place, row in enumerate(rows):
            found = decision.task_node[offset[place] : offset[place + 1]].tolist()
            if row in self._waiting and NOT_PLACED not in found:
                self._waiting.remove(row)
                self.start_s[row] = now_s
                self._places[row] = tuple(found)
                self._live[row] = self._begin(row, tuple(found), now_s)

    def _view(self, rows: list[int], now_s: float) -> ClusterView:
        jobs = [self._jobs[row] for row in rows]
        places = [self._live[row].nodes if row in self._live else (NOT_PLACED,) * self._jobs[row].tasks for row in rows]

        def each(values: list[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
            return np.array(values, dtype=np.float64)

        tasks: Ints = np.array([job.tasks for job in jobs], dtype=np.int64)
        state = [JobState.RUNNING if row in self._live else JobState.WAITING for row in rows]
        return ClusterView(
            time_s=now_s, node_available=np.ones(self._nodes, dtype=np.bool_),
            job_id=np.array([job.job_id for job in jobs], dtype=np.int64),
            submit_time_s=each([job.submit_time_s for job in jobs]), tasks=tasks,
            cpu_need_frac=each([job.cpu_need_frac for job in jobs]),
            mem_req_frac=each([job.mem_req_frac for job in jobs]),
            virtual_time_s=each([self._live[row].done_s if row in self._live else 0.0 for row in rows]),
            state=np.array(state, dtype=np.int8),
            task_node=np.array([node for place in places for node in place], dtype=np.int64),
            start_time_s=self.start_s[rows], estimate_s=np.full(len(rows), np.nan),
            urgent=np.array([job.urgent for job in jobs], dtype=np.bool_),
        )  # fmt: skip

    def _begin(self, row: int, nodes: tuple[int, ...], now_s: float) -> _Live:
        job, model = self._jobs[row], self._model
        work = self._work(job, 0.0)
        accounts: dict[int, dict[str, AccountState]] = {node: {} for node in nodes}
        for task, node in enumerate(nodes):
            accounts[node][str(task)] = AccountState(shares_of(job.cpu_need_frac))
        banked = self._policy.exchange == "bank"
        if banked:
            accounts[nodes[0]][BANK] = AccountState(0)
        total = job.tasks * shares_of(job.cpu_need_frac)
        exchanges = {node: NodeExchange(each, banked=banked, total=total) for node, each in accounts.items()}
        if self._policy.exchange == "none" or job.tasks == 1:  # no exchange
            return _Live(row, job, nodes, work, exchanges, np.inf, np.inf)
        return _Live(row, job, nodes, work, exchanges, now_s + model.period_s, now_s + model.grant_s)

    def _tell(self, now_s: float) -> None:
        if self._model.watch is not None:
            for row, live in self._live.items():
                self._model.watch(now_s, row, live.done_s, live.shares)

    # --- rates

    def _drift(self) -> bool:
        """Move work to other tasks where this is due; return whether any has moved."""
        moved = False
        for live in self._live.values():
            work = self._work(live.job, live.done_s)
            moved, live.work = moved or work != live.work, work
        return moved

    def _work(self, job: Job, done_s: float) -> tuple[float, ...]:
        return tuple(job.cpu_need_frac * part for part in self._model.parts(job, done_s))

    def _set_rates(self) -> None:
        """Find consistent rates of jobs and parts of time in which tasks compute, by fixed-point iteration."""
        lives = list(self._live.values())
        weights = {live.row: [max(share, _LEAST_SHARE) for share in live.shares] for live in lives}
        computes = {live.row: [1.0] * len(live.nodes) for live in lives}
        for _ in range(_ROUNDS):
            load = np.zeros(self._nodes)
            for live in lives:
                for node, weight, part in zip(live.nodes, weights[live.row], computes[live.row], strict=True):
                    load[node] += weight * part
            change = 0.0
            for live in lives:
                own, parts = weights[live.row], computes[live.row]
                live.speeds = [
                    weight / (load[node] + weight * (1.0 - part))
                    for node, weight, part in zip(live.nodes, own, parts, strict=True)
                ]
                rates = [speed / work for speed, work in zip(live.speeds, live.work, strict=True)]
                live.rate = min(rates)
                found = [live.rate / rate for rate in rates]
                change = max(change, *(abs(new - old) for new, old in zip(found, parts, strict=True)))
                computes[live.row] = [(new + old) / 2 for new, old in zip(found, parts, strict=True)]
            if change < _CLOSE:
                return

    # --- the exchange

    def _exchange(self, now_s: float) -> bool:
        """Execute the exchanges that are due; return whether shares have moved."""
        before = [live.shares for live in self._live.values()]
        for live in self._live.values():
            if live.next_s <= now_s + _ROUNDING_S:
                live.next_s += self._model.period_s
                live.number += 1
                uses = self._uses(live)
                for node, exchange in live.exchanges.items():
                    own = {name: uses[name] for name in exchange.shares()}
                    self._deliver(live, exchange.exchange(own, self._free(node), live.number), now_s)
            if live.grant_s <= now_s + _ROUNDING_S:
                live.grant_s += self._model.grant_s
                for exchange in live.exchanges.values():
                    self._deliver(live, exchange.grant(), now_s)
        return before != [live.shares for live in self._live.values()]

    def _uses(self, live: _Live) -> dict[str, Use]:
        if not live.speeds:
            return {str(task): Use(0) for task in range(len(live.nodes))}
        towards = self._model.towards(live.job, live.slowest)
        return {
            str(task): Use(shares_of(use), () if towards[task] is None else (str(towards[task]),))
            for task, use in enumerate(live.use)
        }

    def _free(self, node: int) -> int:
        booked = sum(sum(live.exchanges[node].shares().values()) for live in self._live.values() if node in live.nodes)
        return max(shares_of(1.0) - booked, 0)

    def _deliver(self, live: _Live, messages: list[ExchangeMessage], now_s: float) -> None:
        while messages:
            message = messages.pop(0)
            owner = message.source if isinstance(message, Receipt) else message.target
            node = live.nodes[0] if owner == BANK else live.nodes[int(owner)]
            answers = live.exchanges[node].hear(message, self._free(node))
            if self._record and isinstance(message, Transfer):
                self._note(live.row, message, answers, now_s)
            messages += answers

    def _note(self, row: int, transfer: Transfer, answers: list[ExchangeMessage], now_s: float) -> None:
        """Record a transfer that was taken."""
        if any(isinstance(answer, Receipt) and answer.taken for answer in answers):
            cores = cores_of(transfer.shares)
            self.transfers.append(ShareTransfer(now_s, row, transfer.source, transfer.target, cores))
