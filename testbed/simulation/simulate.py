"""One trace under one policy in virtual time: which loop does it, and what is refused before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from testbed.compiler import can_compile, is_cached
from testbed.errors import UserError
from testbed.limits import MOST_EVENTS, MOST_NODES
from testbed.policies.batch import BatchPolicy
from testbed.policies.dfrs import DfrsPolicy
from testbed.policies.equipartition import Equipartition
from testbed.policies.view import Policy
from testbed.simulation.batch import run_to_end, simulate_batch
from testbed.simulation.by_views import simulate_by_views
from testbed.simulation.compiling import AT_ONCE, Compiling
from testbed.simulation.engine import run_events
from testbed.simulation.fluid import simulate_equipartition
from testbed.simulation.fractional import simulate_fractional
from testbed.simulation.overheads import DEFAULT_NODE_MEMORY_GB, DEFAULT_PENALTY_S, Overheads, constant
from testbed.simulation.run import SimulatedRun
from testbed.workload.jobs import Job


def will_compile(policy: Policy) -> bool:
    """Whether the first simulation of `policy` compiles its loop: numba is there, and machine code of it is not."""
    if not can_compile() or not isinstance(policy, BatchPolicy | DfrsPolicy):
        return False
    return not is_cached(run_to_end if isinstance(policy, BatchPolicy) else run_events)


def simulate(
    jobs: Sequence[Job],
    nodes: int,
    policy: Policy,
    overheads: Overheads | None = None,
    debug: bool = False,
    *,
    node_memory_gb: float = DEFAULT_NODE_MEMORY_GB,
    compiling: Compiling = AT_ONCE,
) -> SimulatedRun:
    """Run `jobs`, sorted by submission, on `nodes` nodes of `node_memory_gb` (1e9 bytes) under `policy`.

    `overheads` is what resumes and migrations cost, by default the 300 s of [RR 5.2]; `debug` checks every decision
    and every end. Policies of the catalogue run compiled where numba is installed and as `compiling` says, at the same
    bits as without it.
    Raises UserError when there are no jobs or nodes, jobs are not sorted, or one can never run; RunError when jobs
    wait for ever or a check fails.
    """
    if not jobs or not 1 <= nodes <= MOST_NODES:
        raise UserError(
            f"{len(jobs)} jobs on {nodes} nodes: a simulation needs at least one of each, and has at most "
            f"{MOST_NODES} nodes"
        )
    for before, after in pairwise(jobs):
        if after.submit_time_s < before.submit_time_s:
            raise UserError(f"job {after.job_id} is submitted before job {before.job_id}: sort jobs by submit time")
    for job in jobs:
        if not policy.can_ever_run(job.tasks, job.mem_req_frac, nodes):
            raise UserError(
                f"job {job.job_id} can never run on {nodes} nodes under {policy.name}: "
                f"{job.tasks} tasks with {job.mem_req_frac:g} of the memory of a node each"
            )
    _check_periods(jobs, policy.period_s)
    table = (constant(DEFAULT_PENALTY_S) if overheads is None else overheads).table(node_memory_gb)
    if isinstance(policy, BatchPolicy):
        return simulate_batch(jobs, nodes, policy, compiling, overheads=table)
    if isinstance(policy, Equipartition):
        return simulate_equipartition(jobs, nodes, policy.name)
    if isinstance(policy, DfrsPolicy):
        return simulate_fractional(jobs, nodes, policy.name, policy.rules, table, debug=debug, compiling=compiling)
    return simulate_by_views(jobs, nodes, policy, table, debug=debug)


def _check_periods(jobs: Sequence[Job], period_s: float | None) -> None:
    longest = max(jobs, key=lambda job: job.run_time_s)
    if period_s and longest.run_time_s / period_s > MOST_EVENTS:
        raise UserError(
            f"period of {period_s:g} s: job {longest.job_id} of {longest.run_time_s:g} s has "
            f"{longest.run_time_s / period_s:.3g} of them: expected at most {MOST_EVENTS:.3g}"
        )
