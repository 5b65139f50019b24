"""Simulation of policies with `/WITHIN=`, under which tasks divide the CPU of their job: a fluid model.

A decision gives each task of a job the same cap, its yield times its CPU need. The exchange of the agents
(`testbed.shares`), without delays and losses, then moves caps between the tasks. The job advances with its slowest
task. A decision that changes the yield or the nodes of a job restarts its exchange. When a decision gives a guest more,
shares that other guests have beyond their yields are out of force, as far as they do not fit
(`testbed.shares.in_force`).

The event loop is that of all policies. Exchanges are not events of the loop, as the policy does not decide then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from testbed.bus.limits import MOST_EVENTS
from testbed.errors import RunError, UserError
from testbed.scheduling.compiler import bound
from testbed.scheduling.policies.state import Cluster, Jobs, Mask
from testbed.scheduling.policies.view import Floats, Ints
from testbed.scheduling.policies.within import DividingPolicy
from testbed.scheduling.simulation import engine
from testbed.scheduling.simulation.overheads import OverheadTable
from testbed.scheduling.simulation.ranks import SharingModel
from testbed.scheduling.simulation.views import Views
from testbed.scheduling.simulation.world import World
from testbed.scheduling.workload.jobs import Job
from testbed.shares.formulas import shares_of
from testbed.shares.in_force import in_force
from testbed.shares.messages import ExchangeMessage, Receipt
from testbed.shares.node import BANK, NodeExchange, Use
from testbed.shares.state import AccountState

_NODE = shares_of(1.0)
_ROUNDING_S = 1e-9


@dataclass(slots=True, eq=False)
class Life:
    """A running job between two decisions that change it: its nodes, and its accounts by node.

    `base` are the shares that the policy gave each task, `parts` the relative work of each task.
    """

    job: Job
    nodes: tuple[int, ...]
    yield_frac: float
    base: int
    parts: tuple[float, ...]
    exchanges: dict[int, NodeExchange]
    next_s: float
    grant_s: float
    force: list[int]  # the shares in force by task
    rate: float = 0.0  # of virtual time, in seconds per second
    number: int = 0
    begun_s: float = 0.0  # when its first period began
    moved_s: float = 0.0  # when shares were last moved

    @property
    def slowest(self) -> int:
        """The slowest task, for which the others wait."""
        return min(range(len(self.nodes)), key=lambda task: self.force[task] / self.parts[task])

    def accounts(self) -> list[int]:
        """Return the shares by task, in force or not."""
        found = {name: shares for each in self.exchanges.values() for name, shares in each.shares().items()}
        return [found[str(task)] for task in range(len(self.nodes))]

    def set_rate(self) -> None:
        """Set the rate of the job, which advances with its slowest task."""
        slowest = self.slowest
        more = self.force[slowest] / self.base if self.base else 1.0
        self.rate = self.yield_frac * more / self.parts[slowest]

    def used(self, task: int) -> int:
        """Return the CPU use of a task, in shares."""
        return min(round(self.rate * self.parts[task] / self.yield_frac * self.base), self.force[task])


class Dividing(Views):
    """A policy in the event loop under which tasks divide the CPU of their job."""

    def __init__(
        self, policy: DividingPolicy, jobs: Sequence[Job], table: Jobs, cluster: Cluster, world: World,
        overheads: OverheadTable, model: SharingModel,
    ) -> None:  # fmt: skip
        super().__init__(policy, jobs, table, cluster, world, overheads)
        self._bends = overheads.beyond.bends
        self._mode, self._jobs, self._model = policy.within, jobs, model
        self.lives: dict[int, Life] = {}  # by row
        self._speed: Floats = np.zeros(len(jobs))
        self._wake_s = np.inf
        self._moves = 0

    def loop(self) -> Callable[..., int]:
        """Return `run_events` with this policy and the exchange; raises `UserError` for measured rates of progress."""
        if self._bends:
            raise UserError(
                f"policy {self._policy.name}: the overheads have measured rates of progress, which are those of equal "
                "caps: expected overheads without progress"
            )
        return bound(
            engine.run_events, decide=self.decide, next_wake_s=self.next_wake_s, clock_ns=self.clock_ns,
            next_event_s=self.next_event_s, advance=self.advance,
        )  # fmt: skip

    def next_wake_s(self, rules: object, submit_time_s: Floats, running: Mask, time_s: float, active: Ints) -> float:
        """See `Views`; shares move until then at most."""
        self._wake_s = super().next_wake_s(rules, submit_time_s, running, time_s, active)
        return self._wake_s

    def next_event_s(self, jobs: Jobs, cluster: Cluster, world: World, speed_of: Floats, tick_s: float) -> float:
        """See `engine.next_event_s`; apply all moves of shares before the event."""
        del speed_of
        self.lives = {row: life for row, life in self.lives.items() if np.isnan(world.end_s[row])}
        while True:
            event_s = engine.next_event_s(jobs, cluster, world, self._speed, tick_s)
            move_s = min((self._next_move_s(row, cluster, world) for row in self.lives), default=np.inf)
            if move_s >= min(event_s, self._wake_s):
                return event_s
            self._moves += 1
            if self._moves > MOST_EVENTS:
                raise RunError(f"policy {self._policy.name!r}: {MOST_EVENTS} moves of shares, and no end")
            self.advance(cluster, world, self._speed, move_s)
            self._drift(cluster, move_s)
            self._move(world, move_s)

    def _next_move_s(self, row: int, cluster: Cluster, world: World) -> float:
        """Return the next instant at which shares or work of a job may move between its tasks."""
        life = self.lives[row]
        until_s = self._model.until_move_s(life.job, float(cluster.virtual_time_s[row])) / life.rate
        begins_s = max(float(world.time_s[0]), float(world.free_at_s[row]))
        return min(life.next_s, life.grant_s, begins_s + until_s)

    def _drift(self, cluster: Cluster, now_s: float) -> None:
        """Move the work of jobs to other tasks where this is due."""
        moved = False
        for row, life in self.lives.items():
            parts = self._model.parts(life.job, float(cluster.virtual_time_s[row]))
            moved, life.parts = moved or parts != life.parts, parts
        if moved:
            self._wake(now_s)
            self._set_speeds(now_s)

    def advance(self, cluster: Cluster, world: World, speed_of: Floats, time_s: float) -> None:
        """See `engine.advance`: jobs progress with their slowest tasks."""
        del speed_of
        engine.advance(cluster, world, self._speed, time_s)

    def decide(
        self, rules: object, jobs: Jobs, cluster: Cluster, time_s: float, active: Ints, submitted: Ints, freed: bool,
        periodic: bool,
    ) -> None:  # fmt: skip
        """Let the policy decide; jobs that it changes begin a new life."""
        super().decide(rules, jobs, cluster, time_s, active, submitted, freed, periodic)
        before, self.lives = self.lives, {}
        for row in active[cluster.running[active]].tolist():
            nodes = tuple(cluster.task_node[jobs.offset[row] : jobs.offset[row + 1]].tolist())
            life = before.get(row)
            if life is None or (life.nodes, life.yield_frac) != (nodes, cluster.yield_frac[row]):
                done_s = float(cluster.virtual_time_s[row])
                life = self._begin(self._jobs[row], nodes, float(cluster.yield_frac[row]), time_s, done_s)
            self.lives[row] = life
        self._wake(time_s)
        self._set_speeds(time_s)

    def _begin(self, job: Job, nodes: tuple[int, ...], yield_frac: float, now_s: float, done_s: float) -> Life:
        base = int(yield_frac * job.cpu_need_frac * _NODE)
        accounts: dict[int, dict[str, AccountState]] = {node: {} for node in nodes}
        for task, node in enumerate(nodes):
            accounts[node][str(task)] = AccountState(base)
        banked = self._mode == "bank"
        if banked:
            accounts[nodes[0]][BANK] = AccountState(0)
        exchanges = {
            node: NodeExchange(each, banked=banked, total=base * job.tasks, capped=True)
            for node, each in accounts.items()
        }
        alone = job.tasks == 1  # no other task to exchange with
        return Life(
            job, nodes, yield_frac, base, self._model.parts(job, done_s), exchanges,
            np.inf if alone else now_s + self._model.period_s, np.inf if alone else now_s + self._model.grant_s,
            [base] * job.tasks, begun_s=now_s, moved_s=now_s,
        )  # fmt: skip

    # --- caps in force

    def _set_speeds(self, now_s: float) -> None:
        for node in {node for life in self.lives.values() for node in life.nodes}:
            self._set_force(node)
        self._speed[:] = 0.0
        for row, life in self.lives.items():
            life.set_rate()
            self._speed[row] = life.rate
            if self._model.watch is not None:
                done_s = float(self._cluster.virtual_time_s[row])
                self._model.watch(now_s, row, done_s, [shares / _NODE for shares in life.force])

    def _set_force(self, node: int) -> None:
        here = [(row, life) for row, life in sorted(self.lives.items()) if node in life.nodes]
        accounts, bases = {}, {}
        for row, life in here:
            for task, shares in life.exchanges[node].shares().items():
                accounts[f"{row}-{task}"], bases[f"{row}-{task}"] = shares, life.base
        found = in_force(accounts, bases, _NODE)
        for row, life in here:
            for task in life.exchanges[node].shares():
                life.force[int(task)] = found[f"{row}-{task}"]

    def _free(self, node: int) -> int:
        """Return the free shares of a node; shares in force are updated first, as they change with the accounts."""
        self._set_force(node)
        booked = sum(
            shares
            for life in self.lives.values()
            for at, shares in zip(life.nodes, life.force, strict=True)
            if at == node
        )
        return max(_NODE - booked, 0)

    # --- the exchange

    def _move(self, world: World, now_s: float) -> None:
        """Execute the exchanges that are due."""
        model, moved = self._model, False
        for row, life in self.lives.items():
            first_s = float(world.free_at_s[row])
            if min(life.next_s, life.grant_s) > now_s + _ROUNDING_S:
                continue
            if now_s < first_s:  # guests take part only from their first work on
                life.next_s, life.grant_s = first_s + model.period_s, first_s + model.grant_s
                life.begun_s = life.moved_s = first_s
                continue
            before = life.accounts()
            self._exchange(life, now_s)
            if life.accounts() != before:
                life.moved_s, moved = now_s, True
            elif now_s - life.moved_s > model.period_s + model.grant_s:
                life.next_s = life.grant_s = np.inf  # settled: no shares move until something changes
        if moved:
            self._wake(now_s)
            self._set_speeds(now_s)

    def _exchange(self, life: Life, now_s: float) -> None:
        if life.next_s <= now_s + _ROUNDING_S:
            life.number += 1
            uses = self._uses(life)
            for node, exchange in life.exchanges.items():
                own = {name: uses[name] for name in exchange.shares()}
                self._deliver(life, exchange.exchange(own, self._free(node), life.number))
            life.next_s = now_s + self._model.period_s
        if life.grant_s <= now_s + _ROUNDING_S:
            for exchange in life.exchanges.values():
                self._deliver(life, exchange.grant())
            life.grant_s = now_s + self._model.grant_s

    def _wake(self, now_s: float) -> None:
        """Resume the exchanges that had settled, as something has changed."""
        for life in self.lives.values():
            if life.next_s == np.inf and life.job.tasks > 1:
                life.next_s = _next(life.begun_s, self._model.period_s, now_s)
                life.grant_s = _next(life.begun_s, self._model.grant_s, now_s)
                life.moved_s = now_s

    def _uses(self, life: Life) -> dict[str, Use]:
        towards = self._model.towards(life.job, life.slowest)
        return {
            str(task): Use(life.used(task), () if towards[task] is None else (str(towards[task]),))
            for task in range(len(life.nodes))
        }

    def _deliver(self, life: Life, messages: list[ExchangeMessage]) -> None:
        while messages:
            message = messages.pop(0)
            owner = message.source if isinstance(message, Receipt) else message.target
            node = life.nodes[0] if owner == BANK else life.nodes[int(owner)]
            messages += life.exchanges[node].hear(message, self._free(node))


def _next(begun_s: float, period_s: float, now_s: float) -> float:
    """Return the first end of a period after now."""
    return begun_s + (math.floor((now_s - begun_s) / period_s + _ROUNDING_S) + 1) * period_s
