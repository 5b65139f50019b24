"""A policy of dynamic fractional resource scheduling through a whole trace: the compiled loop, and what it returns."""

from __future__ import annotations

import time
from collections.abc import Sequence

from testbed.compiler import compiled
from testbed.errors import RunError
from testbed.limits import MOST_EVENTS
from testbed.policies.state import Cluster, Rules
from testbed.simulation.compiling import AT_ONCE, Compiling
from testbed.simulation.engine import FINISHED, PAUSED, STUCK, run_events
from testbed.simulation.overheads import OverheadTable
from testbed.simulation.run import Moves, SimulatedRun
from testbed.simulation.soundness import MEANING
from testbed.simulation.world import (
    ACTIVE,
    DECIDE_MAX_NS,
    DECIDE_NS,
    DECISIONS,
    FAULT_ROW,
    LOGGED,
    SUBMITTED,
    World,
    longer,
    new_moving,
    new_world,
)
from testbed.workload.jobs import Job

_TURN = 2_000  # events between two looks at interrupts and at the room in the log
_TWIN_TURN = 50  # and for the loop uncompiled, between two looks at the clock
_PATIENCE = 100_000  # decisions in a row without progress: penalties that begin anew before they end


def simulate_fractional(
    jobs: Sequence[Job],
    nodes: int,
    policy: str,
    rules: Rules,
    overheads: OverheadTable,
    *,
    debug: bool = False,
    compiling: Compiling = AT_ONCE,
) -> SimulatedRun:
    """Run `jobs`, in order of submission, under `rules`.

    Raises RunError when jobs wait for ever, when no job progresses any more, and with `debug` when a decision or an
    end is not sound.
    """
    run = compiling.begin(run_events)
    table, cluster, world, log = new_world(jobs, nodes)
    moving = new_moving(table, nodes)
    status = PAUSED
    progress, decisions = _progress(cluster, world), 0
    began_s = time.perf_counter()
    while status == PAUSED:
        if world.counts[LOGGED] + len(jobs) > log.row.size:
            log = longer(log)
        turn = _TWIN_TURN if run is run_events else _TURN
        status = run(rules, overheads, table, cluster, world, moving, log, turn, debug)
        if run is run_events and compiling.is_sooner(time.perf_counter() - began_s, _done_frac(world)):
            compiling.announce()
            run = compiled(run_events)
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
    logged = int(world.counts[LOGGED])
    return SimulatedRun(
        policy=policy,
        nodes=nodes,
        jobs=tuple(jobs),
        start_s=world.start_s,
        end_s=world.end_s,
        virtual_time_s=cluster.virtual_time_s,
        preemptions=world.preemptions,
        migrations=world.migrations,
        penalty_s=world.penalty_s,
        tasks_moved=world.tasks_moved,
        moves=Moves(
            time_s=log.time_s[:logged].copy(),
            row=log.row[:logged].copy(),
            kind=log.kind[:logged].copy(),
            tasks=log.tasks[:logged].copy(),
        ),
        decisions=int(world.counts[DECISIONS]),
        decide_total_s=float(world.counts[DECIDE_NS]) / 1e9,
        decide_max_s=float(world.counts[DECIDE_MAX_NS]) / 1e9,
    )


def _progress(cluster: Cluster, world: World) -> tuple[int, float]:
    return int(world.counts[SUBMITTED]), float(cluster.virtual_time_s.sum())


def _done_frac(world: World) -> float:
    """Return which part of the jobs has ended."""
    return float(world.counts[SUBMITTED] - world.counts[ACTIVE]) / world.rows.size


def _place(policy: str, world: World) -> str:
    return f"policy {policy!r} at {world.time_s[0]:.17g} s"


def _in_system(jobs: Sequence[Job], world: World) -> str:
    rows = world.active[: world.counts[ACTIVE]]
    names = ", ".join(str(jobs[row].job_id) for row in rows[:5])
    return f"jobs {names}" + (f" and {rows.size - 5} more" if rows.size > 5 else "")
