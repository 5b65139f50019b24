"""Overhead models for simulation: seconds by the memory of a task and by the number of tasks that move at once.

Every model is one table for the loop: seconds at the points of a grid, interpolated linearly, and extrapolated from the
last two points. `testbed.scheduling.simulation.overheads_parser` returns the model that a text names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any, NamedTuple

import numpy as np

from testbed.bus.limits import MOST_TRACE_S
from testbed.errors import UserError
from testbed.scheduling.compiler import lean_kernel
from testbed.scheduling.policies.view import Floats
from testbed.scheduling.simulation.progress import Progress, rate_at, segment_of, weight_of

DEFAULT_PENALTY_S = 300.0  # [RR 5.1]
DEFAULT_NODE_MEMORY_GB = 8.0  # [RR 5.1]: 1 TB on 128 nodes
_SECONDS = ("resume_s", "migration_s", "start_s", "save_s")
_GRIDS = (*_SECONDS, "transfer_s")
_EXTRA = (*_SECONDS, "start_s_per_gb")
SAVE_AND_RESTORE, LIVE = "save-restore", "live"  # ways of a migration, and mechanisms of a scenario
_ENDS = np.array([0.0, 1.0])


class PenaltyTable(NamedTuple):
    """The grid: L levels of concurrency, K points of memory; the seconds at each point for resumes and migrations."""

    concurrent_tasks: Floats  # (L,) increasing: tasks that move at one instant
    memory_gb: Floats  # (K,) increasing: memory of one task, in 1e9 bytes
    resume_s: Floats  # (L, K)
    migration_s: Floats  # (L, K)
    node_memory_gb: float  # turns memory requirements, fractions of a node, into GB


class ExtraOverheads(NamedTuple):
    """The parts of a model beyond penalties, and flags for those that it has; Y yields of `Progress`."""

    any: bool  # whether one of the following flags is set
    starts: bool  # whether a first start has a cost
    ordered: bool  # whether starts or saves have costs: operations wait for each other, and for memory
    per_node: bool  # whether concurrency is counted per node, else over the cluster
    bends: bool  # whether progress differs from the yield
    crowds: bool  # whether operations take longer beside running tasks
    by_images: bool  # whether migrations are saves and restores
    by_copies: bool  # whether migrations are live
    start_s: Floats  # (L, K)
    save_s: Floats  # (L, K)
    transfer_s: Floats  # (L, K)
    yields: Floats  # (Y + 1,) from 0 to 1
    serial_rates: Floats  # (Y + 1,)
    parallel_rates: Floats  # (Y + 1,)
    more_start_s: float  # extra seconds of jobs of several tasks, beyond the tables
    more_start_s_per_gb: float  # and of each task's memory
    more_save_s: float
    more_resume_s: float
    more_migration_s: float
    beside_start_frac: float  # by which each task that runs on the node makes an operation longer
    beside_save_frac: float
    beside_resume_frac: float


class OverheadTable(NamedTuple):
    """A model in the form that the loops read."""

    penalties: PenaltyTable
    beyond: ExtraOverheads


@dataclass(frozen=True, slots=True)
class ParallelExtra:
    """Extra seconds of jobs of several tasks, beyond the tables, which are for one task.

    Such jobs start MPI, and their tasks stop and continue together. A start also takes `start_s_per_gb` for each 1e9
    bytes of a task's memory. Raises ValueError for seconds that are negative or not finite.
    """

    start_s: float = 0.0
    save_s: float = 0.0
    resume_s: float = 0.0
    migration_s: float = 0.0
    start_s_per_gb: float = 0.0

    def __post_init__(self) -> None:
        for kind in _EXTRA:
            if not 0.0 <= getattr(self, kind) < inf:
                raise ValueError(f"parallel.{kind} must be finite and not negative")

    def scaled(self, factor: float) -> ParallelExtra:
        """Return all seconds times `factor`."""
        return ParallelExtra(**{kind: factor * getattr(self, kind) for kind in _EXTRA})


@dataclass(frozen=True, slots=True)
class BesideRunning:
    """The fractions by which each task that runs on the node makes an operation there longer.

    It takes CPU time from programs that start, write or read their image. Raises ValueError for fractions that are
    negative or not finite.
    """

    start_frac: float = 0.0
    save_frac: float = 0.0
    resume_frac: float = 0.0

    def __post_init__(self) -> None:
        for kind in ("start_frac", "save_frac", "resume_frac"):
            if not 0.0 <= getattr(self, kind) < inf:
                raise ValueError(f"beside.{kind} must be finite and not negative")


_NOTHING = ParallelExtra()
_IDLE = BesideRunning()


@dataclass(frozen=True, slots=True, eq=False)
class Overheads:
    """An overhead model: seconds without progress after a resume, a migration, and perhaps after a first start.

    `concurrent_tasks` (L,) and `memory_gb` (K,) increase; all seconds are (L, K), finite and not negative. An axis
    with one point has no effect. Raises ValueError for arrays that do not agree.

    * `start_s`: the duration of a job's first start; with None first starts are free [RR 5.1].
    * `save_s`: the time for which a task that is paused, or that moves away, still occupies memory of its node. Its
      concurrency is that of the tasks that leave. A job that comes to the node, by the same decision or a later one,
      begins to start, to resume or to migrate when the node has memory for it. No job resumes before all of its own
      images are written. With starts or saves, an operation on a job begins when the previous one on the same job has
      ended; one that has not begun when the job is paused or placed elsewhere is never done.
    * `transfer_s`: the time to send an image to another node, which a job needs that resumes elsewhere than before.
    * `migrates`: the way of `migration_s`, SAVE_AND_RESTORE or LIVE; with an empty text the way is unknown. The save of
      a migration by images does not wait for its new place; a guest that migrates live occupies its old node for
      `migration_s`, any other for `save_s`.
    * `per_node`: concurrency counts the tasks that come to one node by one decision, and the node with the most tasks
      counts for a job; else it counts the tasks that come to any node. First starts count if `start_s` is given.
    * `progress`: the rate of progress at a yield; with None the rate is the yield.
    * `wall_clock`: seconds are wall seconds of a lab, as measured, not trace seconds; both are equal at time scale 1.
    * `parallel`: extra seconds of jobs of several tasks.
    * `beside`: how much longer operations take beside running tasks: those of the node with the most of them, or of the
      cluster, as concurrency counts. A migration is longer by the fraction of a resume. Only models with starts or
      saves have it.
    * `most_memory_gb`: the largest memory of a task for which the model holds, in 1e9 bytes; `simulate` refuses larger
      tasks.
    """

    name: str
    concurrent_tasks: Floats
    memory_gb: Floats
    resume_s: Floats
    migration_s: Floats
    start_s: Floats | None = None
    save_s: Floats | None = None
    transfer_s: Floats | None = None
    migrates: str = ""
    per_node: bool = False
    progress: Progress | None = None
    wall_clock: bool = False
    most_memory_gb: float = inf
    parallel: ParallelExtra = _NOTHING
    beside: BesideRunning = _IDLE

    def __post_init__(self) -> None:
        shape = (self.concurrent_tasks.size, self.memory_gb.size)
        if 0 in shape:
            raise ValueError("a table of overheads has no points")
        for axis, points in (("concurrent_tasks", self.concurrent_tasks), ("memory_gb", self.memory_gb)):
            if np.any(np.diff(points) <= 0.0):
                raise ValueError(f"{axis} must increase: {points.tolist()}")
        if self.migrates not in ("", SAVE_AND_RESTORE, LIVE):
            raise ValueError(f"migrates must be {SAVE_AND_RESTORE!r} or {LIVE!r}, not {self.migrates!r}")
        for kind in _GRIDS:
            values: Floats | None = getattr(self, kind)
            if values is None:
                continue
            if values.shape != shape:
                raise ValueError(f"{kind} is {values.shape}: expected {shape}, one row per level, one column per size")
            if not np.all(np.isfinite(values) & (values >= 0.0)):
                raise ValueError(f"{kind} must be finite and not negative")

    @property
    def mean_penalty_s(self) -> float:
        """Mean cost in seconds, over all points, of a pause with its resume, and of a migration.

        The cost of a pause with its resume includes the save, as the penalty of [RR 5.1] does.
        """
        paused_s = self.resume_s if self.save_s is None else self.resume_s + self.save_s
        return float(np.mean((paused_s, self.migration_s)))

    def scaled(self, factor: float) -> Overheads:
        """Return the model with all seconds times `factor`, as trace seconds; progress is not changed.

        For wall seconds of a lab the factor is the time scale of the run.
        """
        if not 0.0 < factor < inf:
            raise ValueError(f"overheads times {factor}: expected a factor, more than 0")
        seconds: dict[str, Any] = {
            kind: values * factor for kind in _GRIDS if (values := getattr(self, kind)) is not None
        }
        name = self.name if factor == 1.0 else f"{self.name} x {factor:g}"
        return replace(self, name=name, wall_clock=False, parallel=self.parallel.scaled(factor), **seconds)

    def table(self, node_memory_gb: float) -> OverheadTable:
        """Return the model in the form that the loop reads, for nodes of `node_memory_gb`."""
        penalties = PenaltyTable(
            self.concurrent_tasks, self.memory_gb, self.resume_s, self.migration_s, float(node_memory_gb)
        )
        free = np.zeros_like(self.resume_s)
        start_s, save_s, transfer_s = (
            free if each is None else each for each in (self.start_s, self.save_s, self.transfer_s)
        )
        bent = None if self.progress is None or self.progress.is_the_yield else self.progress
        more, beside = self.parallel, self.beside
        starts = bool(np.any(start_s > 0.0)) or more.start_s > 0.0 or more.start_s_per_gb > 0.0
        saves = bool(np.any(save_s > 0.0)) or more.save_s > 0.0
        crowds = (starts or saves) and beside != _IDLE
        yields, serial, parallel = [_ENDS] * 3 if bent is None else bent.from_zero()
        has_any = starts or saves or self.per_node or bent is not None
        beyond = ExtraOverheads(
            has_any, starts, starts or saves, self.per_node, bent is not None, crowds,
            self.migrates == SAVE_AND_RESTORE, self.migrates == LIVE, start_s, save_s, transfer_s,
            yields, serial, parallel, more.start_s, more.start_s_per_gb, more.save_s, more.resume_s, more.migration_s,
            beside.start_frac, beside.save_frac, beside.resume_frac,
        )  # fmt: skip
        return OverheadTable(penalties, beyond)


def constant(seconds: float) -> Overheads:
    """Return the rescheduling penalty of [RR 5.1]: `seconds` for every resume and every migration."""
    if not 0.0 <= seconds <= MOST_TRACE_S:
        raise UserError(
            f"a rescheduling penalty of {seconds} s: expected seconds, not negative, at most {MOST_TRACE_S:.0f}"
        )
    values = np.array([[float(seconds)]])
    return Overheads(f"constant:{seconds:g}", np.array([1.0]), np.array([0.0]), values, values)


def linear(fixed_s: float, gb_per_s: float, total_gb_per_s: float = inf) -> Overheads:
    """Return `fixed_s` + memory / rate for a resume, `fixed_s` + 2 memory / rate for a migration.

    A resume reads an image that was written while the job was paused; a migration through storage writes and reads.
    The rate of a task is `gb_per_s`, or its equal share of `total_gb_per_s` if n tasks that move at one instant
    would need more: 1 / rate = max(1 / gb_per_s, n / total_gb_per_s).
    """
    if not (0.0 <= fixed_s <= MOST_TRACE_S and 0.0 < gb_per_s < inf and total_gb_per_s > 0.0):
        raise UserError(
            f"linear overheads of {fixed_s} s, {gb_per_s} GB/s, {total_gb_per_s} GB/s in all: "
            f"not positive, or more than {MOST_TRACE_S:.0f} s"
        )
    name = f"linear:fixed_s={fixed_s:g},gb_per_s={gb_per_s:g}"
    levels = np.array([1.0])
    if isfinite(total_gb_per_s):
        name += f",total_gb_per_s={total_gb_per_s:g}"
        saturated = max(total_gb_per_s / gb_per_s, 1.0)
        levels = np.unique([1.0, saturated, 2.0 * saturated])
    memory_gb = np.array([0.0, 1.0])
    s_per_gb = np.maximum(1.0 / gb_per_s, levels / total_gb_per_s)
    read_s = np.outer(s_per_gb, memory_gb)
    return Overheads(name, levels, memory_gb, fixed_s + read_s, fixed_s + 2.0 * read_s)


@lean_kernel
def overhead_s(table: PenaltyTable, seconds: Floats, concurrent_tasks: float, mem_req_frac: float) -> float:
    """Interpolate `seconds` (L, K), given at the points of the table, for a task of this memory; never negative."""
    level = point = 0
    down = right = 0.0
    if table.concurrent_tasks.size > 1:
        level = segment_of(table.concurrent_tasks, concurrent_tasks)
        down = weight_of(table.concurrent_tasks, level, concurrent_tasks)
    if table.memory_gb.size > 1:
        memory_gb = mem_req_frac * table.node_memory_gb
        point = segment_of(table.memory_gb, memory_gb)
        right = weight_of(table.memory_gb, point, memory_gb)
    value = seconds[level, point]
    if right != 0.0:
        value += right * (seconds[level, point + 1] - seconds[level, point])
    if down != 0.0:
        below = seconds[level + 1, point]
        if right != 0.0:
            below += right * (seconds[level + 1, point + 1] - seconds[level + 1, point])
        value += down * (below - value)
    return max(float(value), 0.0)


@lean_kernel
def extra_start_s(overheads: OverheadTable, mem_req_frac: float) -> float:
    """Return the seconds by which the start of several tasks of this memory exceeds that of one task."""
    beyond = overheads.beyond
    return beyond.more_start_s + beyond.more_start_s_per_gb * mem_req_frac * overheads.penalties.node_memory_gb


@lean_kernel
def progress_rate(table: ExtraOverheads, tasks: int, yield_frac: float) -> float:
    """Return the progress of a job of `tasks` tasks, seconds of virtual time per second, at a yield above 0."""
    if tasks == 1:
        return rate_at(table.yields, table.serial_rates, yield_frac)
    return rate_at(table.yields, table.parallel_rates, yield_frac)
