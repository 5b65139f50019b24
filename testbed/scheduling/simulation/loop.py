"""Runs the event loop over a whole trace, compiled or plain, in turns that allow interrupts; returns the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from testbed.bus.limits import MOST_EVENTS
from testbed.errors import RunError
from testbed.scheduling.compiler import compiled
from testbed.scheduling.policies.kernel_policy import JobColumns, first_argument, has_kernels
from testbed.scheduling.policies.state import Cluster, Jobs
from testbed.scheduling.policies.view import NOT_PLACED, Policy, knows_costs
from testbed.scheduling.policies.within import DividingPolicy
from testbed.scheduling.simulation.compiling import AT_ONCE, Compiling
from testbed.scheduling.simulation.dividing import Dividing
from testbed.scheduling.simulation.engine import FINISHED, PAUSED, STUCK, event_loop
from testbed.scheduling.simulation.moving import move_costs_s
from testbed.scheduling.simulation.needs import Needing, NeedsModel
from testbed.scheduling.simulation.overheads import OverheadTable
from testbed.scheduling.simulation.ranks import PLAIN, SharingModel
from testbed.scheduling.simulation.run import MIGRATION, Moves, Recording, SimulatedRun
from testbed.scheduling.simulation.soundness import MEANING
from testbed.scheduling.simulation.speeds import NodeSpeeds, Paced
from testbed.scheduling.simulation.views import Views
from testbed.scheduling.simulation.world import (
    ACTIVE,
    DECIDE_MAX_NS,
    DECIDE_NS,
    DECISIONS,
    FAULT_ROW,
    LOGGED,
    NODES_LOGGED,
    SUBMITTED,
    Log,
    World,
    new_log,
    new_moves,
    new_world,
    with_room,
)
from testbed.scheduling.workload.jobs import Job

_TURN = 2_000  # events between two checks for interrupts and for space in the log
_TWIN_TURN = 50  # the same for the plain loop, after which the clock is read
_PATIENCE = 100_000  # most decisions in a row without progress, as when penalties restart before they end


def run_loop(
    jobs: Sequence[Job],
    nodes: int,
    policy: Policy,
    overheads: OverheadTable,
    *,
    debug: bool = False,
    compiling: Compiling = AT_ONCE,
    record: bool = False,
    views: bool = False,
    sharing: SharingModel = PLAIN,
    speeds: NodeSpeeds | None = None,
    needs: NeedsModel | None = None,
) -> SimulatedRun:
    """Run `jobs`, in order of submission, under `policy`; with `views` it does not use the kernels of the policy.

    `sharing` is the model of programs for policies under which tasks divide the CPU of their job. `speeds` are the
    speeds of nodes over time, if they change; `needs` are the real needs of jobs, if they are not as declared. With
    either of these every policy decides on views.
    Raises RunError when jobs wait for ever, when no job progresses any more, and with `debug` when a decision or an
    end is not sound.
    """
    table, cluster, world = new_world(jobs, nodes)
    moves, log = new_moves(table, nodes), new_log(table, records=record)
    run: Callable[..., int]
    plain: Callable[..., int] | None = None
    rules: object = ()
    viewed: Views | None = None
    if has_kernels(policy) and not views and speeds is None and needs is None:
        plain, rules = event_loop(policy.kernels), first_argument(policy, columns_of(jobs, world, policy, overheads))
        run = compiling.begin(plain)
    else:
        viewed = _viewed(policy, jobs, (table, cluster, world), overheads, sharing, speeds, needs)
        run = viewed.loop()
    period_s = float(policy.period_s or 0.0)
    status = PAUSED
    progress, decisions = _progress(cluster, world), 0
    began_s = time.perf_counter()
    while status == PAUSED:
        log = with_room(log, world, table)
        turn = _TURN if plain is not None and run is not plain else _TWIN_TURN
        status = run(rules, period_s, overheads, table, cluster, world, moves, log, turn, debug)
        if run is plain and compiling.is_sooner(time.perf_counter() - began_s, _done_frac(world)):
            compiling.announce()
            run = compiled(plain)
        if world.counts[DECISIONS] > MOST_EVENTS:
            raise RunError(
                f"{_place(policy, world)}: {MOST_EVENTS} decisions, and no end: "
                f"expected a longer period or fewer jobs: {_in_system(jobs, world)}"
            )
        if (now := _progress(cluster, world)) != progress:
            progress, decisions = now, int(world.counts[DECISIONS])
        elif world.counts[DECISIONS] - decisions > _PATIENCE:
            raise RunError(f"{_place(policy, world)}: no job progresses any more: {_in_system(jobs, world)}")
    if status == STUCK:
        raise RunError(f"{_place(policy, world)}: jobs are left to wait for ever: {_in_system(jobs, world)}")
    if status != FINISHED:
        job = jobs[int(world.counts[FAULT_ROW])]
        raise RunError(f"{_place(policy, world)}: job {job.job_id} {MEANING[status]}")
    return SimulatedRun(
        policy=policy.name,
        nodes=nodes,
        jobs=tuple(jobs),
        start_s=world.start_s,
        end_s=world.end_s,
        virtual_time_s=cluster.virtual_time_s,
        preemptions=world.preemptions,
        migrations=world.migrations,
        penalty_s=world.penalty_s,
        tasks_moved=world.tasks_moved,
        moves=_moves(log, int(world.counts[LOGGED])),
        decisions=int(world.counts[DECISIONS]),
        decide_total_s=float(world.counts[DECIDE_NS]) / 1e9,
        decide_max_s=float(world.counts[DECIDE_MAX_NS]) / 1e9,
        recording=_recording(log, world) if record else None,
        needs=viewed.figures if isinstance(viewed, Needing) else None,
    )


def columns_of(jobs: Sequence[Job], world: World, policy: Policy, overheads: OverheadTable) -> JobColumns:
    """Return the columns beside `Jobs` that a policy may use; first starts and last nodes are arrays of the world.

    A paused job has its images where it last ran.
    """
    move_cost_s, image_node = np.full(len(jobs), np.nan), np.full(world.stood_on.size, NOT_PLACED, dtype=np.int64)
    if knows_costs(policy):
        move_cost_s, image_node = move_costs_s(jobs, overheads), world.stood_on
    estimate_s = np.full(len(jobs), np.nan)
    if policy.needs_estimates:
        estimate_s = np.array([job.batch_estimate_s for job in jobs], dtype=np.float64)
    urgent = np.array([job.urgent for job in jobs], dtype=np.bool_)
    return JobColumns(world.start_s, estimate_s, urgent, move_cost_s, image_node)


def _viewed(
    policy: Policy, jobs: Sequence[Job], arrays: tuple[Jobs, Cluster, World], overheads: OverheadTable,
    sharing: SharingModel, speeds: NodeSpeeds | None, needs: NeedsModel | None,
) -> Views:  # fmt: skip
    """Return a policy that decides on views, for the event loop."""
    if needs is not None:
        return Needing(policy, jobs, *arrays, overheads, needs)
    if speeds is not None:
        return Paced(policy, jobs, *arrays, overheads, speeds)
    if isinstance(policy, DividingPolicy):
        return Dividing(policy, jobs, *arrays, overheads, sharing)
    return Views(policy, jobs, *arrays, overheads)


def _moves(log: Log, logged: int) -> Moves:
    chosen = np.flatnonzero(log.kind[:logged] <= MIGRATION)
    return Moves(time_s=log.time_s[chosen], row=log.row[chosen], kind=log.kind[chosen], tasks=log.tasks[chosen])


def _recording(log: Log, world: World) -> Recording:
    logged = int(world.counts[LOGGED])
    return Recording(
        time_s=log.time_s[:logged],
        row=log.row[:logged],
        kind=log.kind[:logged],
        yield_frac=log.yield_frac[:logged],
        free_at_s=log.free_at_s[:logged],
        nodes=log.nodes[: int(world.counts[NODES_LOGGED])],
    )


def _progress(cluster: Cluster, world: World) -> tuple[int, float]:
    return int(world.counts[SUBMITTED]), float(cluster.virtual_time_s.sum())


def _done_frac(world: World) -> float:
    """Return the part of the jobs that has ended."""
    return float(world.counts[SUBMITTED] - world.counts[ACTIVE]) / world.rows.size


def _place(policy: Policy, world: World) -> str:
    return f"policy {policy.name!r} at {world.time_s[0]:.17g} s"


def _in_system(jobs: Sequence[Job], world: World) -> str:
    rows = world.active[: world.counts[ACTIVE]]
    names = ", ".join(str(jobs[row].job_id) for row in rows[:5])
    return f"jobs {names}" + (f" and {rows.size - 5} more" if rows.size > 5 else "")
