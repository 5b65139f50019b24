"""Simulation of jobs whose real CPU needs differ from the declared ones, and of need estimation.

The policy sees `Job.cpu_need_frac`; the job really needs `Job.real_need_frac`, times a factor that depends on the part
of its work that is done (`NeedsModel.profile`). A decision caps each task at its yield times the need that the policy
saw. A task with a cap of at least its real need progresses at full speed, and otherwise at cap / real need. The unused
part of a cap is idle.

Under a policy that `watches_needs`, each job has the estimator of the agents (`testbed.needs`). Between two changes of
cap or need all windows are equal, except for the measurement error. Therefore the simulation evaluates one window after
each change. At its end the policy decides again, with the new estimate if that differs by more than `NEWS_FRAC`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from testbed.bus.limits import MOST_EVENTS
from testbed.errors import RunError, UserError
from testbed.needs.estimator import NEED_WINDOW_S, NEWS_FRAC, NeedEstimator, Window
from testbed.scheduling.compiler import bound
from testbed.scheduling.policies.discovering import watches_needs
from testbed.scheduling.policies.state import Cluster, Jobs, Mask
from testbed.scheduling.policies.view import Floats, Ints, Policy
from testbed.scheduling.simulation import engine
from testbed.scheduling.simulation.needs_figures import NeedsFigures
from testbed.scheduling.simulation.overheads import OverheadTable
from testbed.scheduling.simulation.views import Views
from testbed.scheduling.simulation.world import ACTIVE, World
from testbed.scheduling.workload.jobs import Job

FOUND_FRAC = 0.1  # an estimate within this relative error counts as converged
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class NeedsModel:
    """Parameters of real needs and of their estimation; times are trace seconds.

    A job has `profile[k][1]` times its real need from the part `profile[k][0]` of its work on; the first part is 0.
    `window_s` is the window length of the estimator. With `reports_throttling` nodes report for how long caps throttle
    tasks: a task whose cap is below its need never waits for its pace, and computes on the whole node unless it is
    throttled. Usage is measured with the relative standard error `error_frac`, drawn from `seed`. The absolute error of
    the estimator counts as a part of a node.
    """

    profile: tuple[tuple[float, float], ...] = ((0.0, 1.0),)
    window_s: float = NEED_WINDOW_S
    reports_throttling: bool = True
    error_frac: float = 0.02
    seed: int = 0

    @property
    def changes(self) -> bool:
        """Whether needs vary over the work of a job."""
        return any(factor != 1.0 for _, factor in self.profile)


@dataclass(slots=True, eq=False)
class _Watch:
    """The estimator of a job, and the time of the last change of its need or its cap."""

    estimator: NeedEstimator
    need_frac: float = 0.0
    cap_frac: float = 0.0
    since_s: float = 0.0
    observed: bool = False  # whether the window after that change was evaluated
    wrong_s: float | None = None  # running time since the last change of the need, if it is not found yet


class Needing(Views):
    """A policy in the event loop, with jobs whose needs are not as declared."""

    def __init__(
        self, policy: Policy, jobs: Sequence[Job], table: Jobs, cluster: Cluster, world: World,
        overheads: OverheadTable, model: NeedsModel,
    ) -> None:  # fmt: skip
        super().__init__(policy, jobs, table, cluster, world, overheads)
        self._bends = overheads.beyond.bends
        self._model = model
        self._watches = watches_needs(policy)
        self._real: Floats = np.array([job.real_need_frac for job in jobs], dtype=np.float64)
        self._declared: Floats = table.cpu_need_frac.copy()
        self._cap: Floats = np.zeros(len(jobs))
        self._speed: Floats = np.zeros(len(jobs))
        self._wake_s = np.inf
        self._watched: dict[int, _Watch] = {}
        self._random = np.random.default_rng(model.seed)
        self._windows = 0
        self._figures = NeedsFigures()

    def loop(self) -> Callable[..., int]:
        """Return `run_events` with this policy for these jobs; raises `UserError` for measured rates of progress."""
        if self._bends:
            raise UserError(
                f"policy {self._policy.name}: the overheads have measured rates of progress, which are those of tasks "
                "with all the need that they declare: expected overheads without progress"
            )
        return bound(
            engine.run_events, decide=self.decide, next_wake_s=self.next_wake_s, clock_ns=self.clock_ns,
            next_event_s=self.next_event_s, advance=self.advance,
        )  # fmt: skip

    @property
    def figures(self) -> NeedsFigures:
        """The figures of the run so far."""
        missing = sum(watch.wrong_s is not None for watch in self._watched.values())
        return replace(self._figures, not_found=self._figures.not_found + missing)

    def need_frac(self, row: int) -> float:
        """Return the present real need of each task of a job."""
        done_frac = self._cluster.virtual_time_s[row] / self._world.run_time_s[row]
        factors = [factor for from_frac, factor in self._model.profile if done_frac >= from_frac - _ROUNDING]
        return float(self._real[row]) * factors[-1]

    # --- progress

    def next_event_s(self, jobs: Jobs, cluster: Cluster, world: World, speed_of: Floats, tick_s: float) -> float:
        """See `engine.next_event_s`; apply changes of needs that happen before the event."""
        del speed_of
        while True:
            event_s = engine.next_event_s(jobs, cluster, world, self._speed, tick_s)
            event_s = min(event_s, self._next_window_end_s())
            change_s = min((self._next_change_s(row) for row in self._running()), default=np.inf)
            if change_s >= min(event_s, self._wake_s):
                return event_s
            self.advance(cluster, world, self._speed, change_s)
            self._set_speeds(change_s)

    def _next_change_s(self, row: int) -> float:
        """Return when the real need of a running job changes next."""
        done_s, all_s = self._cluster.virtual_time_s[row], self._world.run_time_s[row]
        for from_frac, _ in self._model.profile:
            if done_s < from_frac * all_s - _ROUNDING * all_s:
                begins_s = max(self._world.time_s[0], self._world.free_at_s[row])
                return float(begins_s + (from_frac * all_s - done_s) / self._speed[row])
        return np.inf

    def advance(self, cluster: Cluster, world: World, speed_of: Floats, time_s: float) -> None:
        """See `engine.advance`; accumulate the figures."""
        del speed_of
        now_s, figures = world.time_s[0], self._figures
        loads = np.zeros(cluster.node_available.size)
        for row in self._running():
            took_s = time_s - max(now_s, world.free_at_s[row])
            tasks, need = slice(self._table.offset[row], self._table.offset[row + 1]), self.need_frac(row)
            np.add.at(loads, cluster.task_node[tasks], need)
            watch = self._watched[row]
            if took_s <= 0.0:
                continue
            many = (tasks.stop - tasks.start) * took_s
            used = min(self._cap[row], need)
            figures.used_cpu_s += many * used
            figures.unused_cpu_s += many * (self._cap[row] - used)
            figures.short_cpu_s += many * max(need * cluster.yield_frac[row] - used, 0.0)
            if watch.wrong_s is not None:
                watch.wrong_s += took_s
        figures.overcommitted_s += float(np.maximum(loads - 1.0, 0.0).sum()) * (time_s - now_s)
        engine.advance(cluster, world, self._speed, time_s)

    def _running(self) -> list[int]:
        return [row for row in self._world.active[: self._world.counts[ACTIVE]].tolist() if self._cluster.running[row]]

    def _set_speeds(self, now_s: float) -> None:
        """Set the speeds of running jobs by caps and needs; begin a new window for jobs where one of them changed."""
        self._speed[:] = 0.0
        for row in self._running():
            need, cap = self.need_frac(row), float(self._cap[row])
            self._speed[row] = min(cap / need, 1.0)
            watch = self._watched.setdefault(row, _Watch(NeedEstimator(float(self._declared[row]), 1.0)))
            if (watch.need_frac, watch.cap_frac) == (need, cap):
                continue
            if watch.need_frac != need:
                self._figures.not_found += watch.wrong_s is not None  # it changed again before it was found
                watch.wrong_s = 0.0
            watch.need_frac, watch.cap_frac, watch.since_s, watch.observed = need, cap, now_s, False
            self._note_found(watch)

    def _note_found(self, watch: _Watch) -> None:
        if watch.wrong_s is not None and abs(watch.estimator.need.cores / watch.need_frac - 1.0) <= FOUND_FRAC:
            self._figures.found_s.append(watch.wrong_s)
            watch.wrong_s = None

    # --- the policy and its estimates

    def next_wake_s(self, rules: object, submit_time_s: Floats, running: Mask, time_s: float, active: Ints) -> float:
        """See `Views`; the policy also decides at the end of each window."""
        asked_s = super().next_wake_s(rules, submit_time_s, running, time_s, active)
        self._wake_s = min(asked_s, self._next_window_end_s())
        return self._wake_s

    def _next_window_end_s(self) -> float:
        if not self._watches:
            return np.inf
        return min((self._window_end_s(row) for row in self._running()), default=np.inf)

    def _window_end_s(self, row: int) -> float:
        """Return when the window after the last change of a running job ends, infinite if it was evaluated."""
        watch = self._watched[row]
        if watch.observed:
            return np.inf
        return max(watch.since_s, float(self._world.free_at_s[row])) + self._model.window_s

    def _observe(self, now_s: float) -> None:
        """Evaluate windows that have ended, and update the needs that the policy sees."""
        for row in self._running() if self._watches else ():
            if self._window_end_s(row) > now_s + _ROUNDING:
                continue
            watch = self._watched[row]
            need, cap = watch.need_frac, watch.cap_frac
            watch.observed = True
            self._windows += 1
            if self._windows > MOST_EVENTS:
                raise RunError(f"policy {self._policy.name!r}: {MOST_EVENTS} windows, and no end")
            paced = need * max(1.0 + self._model.error_frac * float(self._random.standard_normal()), 0.1)
            used = min(paced, cap)
            throttled_frac = (1.0 - cap if paced > cap else 0.0) if self._model.reports_throttling else None
            watch.estimator.observe(Window(cap, used, throttled_frac))
            booked = watch.estimator.need.booked_cores
            if abs(booked / self._table.cpu_need_frac[row] - 1.0) > NEWS_FRAC:
                self._table.cpu_need_frac[row] = booked
            self._note_found(watch)

    def decide(
        self, rules: object, jobs: Jobs, cluster: Cluster, time_s: float, active: Ints, submitted: Ints, freed: bool,
        periodic: bool,
    ) -> None:  # fmt: skip
        """Let the policy decide, with the present estimates."""
        self._observe(time_s)
        super().decide(rules, jobs, cluster, time_s, active, submitted, freed, periodic)
        self._cap[active] = cluster.yield_frac[active] * jobs.cpu_need_frac[active]
        self._set_speeds(time_s)
