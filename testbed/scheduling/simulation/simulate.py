"""Simulation of one trace under one policy: checks of the input, and the choice of the kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from testbed.bus.limits import MOST_EVENTS, MOST_NODES
from testbed.errors import UserError
from testbed.scheduling.compiler import can_compile, is_cached
from testbed.scheduling.policies.backfill import is_queue
from testbed.scheduling.policies.discovering import watches_needs
from testbed.scheduling.policies.kernel_policy import has_kernels
from testbed.scheduling.policies.view import Policy, SharingPolicy, can_ever_run
from testbed.scheduling.policies.within import DividingPolicy
from testbed.scheduling.simulation.batch import run_to_end, simulate_batch
from testbed.scheduling.simulation.compiling import AT_ONCE, Compiling
from testbed.scheduling.simulation.engine import event_loop
from testbed.scheduling.simulation.loop import run_loop
from testbed.scheduling.simulation.needs import NeedsModel
from testbed.scheduling.simulation.overheads import DEFAULT_NODE_MEMORY_GB, DEFAULT_PENALTY_S, Overheads, constant
from testbed.scheduling.simulation.overheads_parser import EXTRAPOLATE
from testbed.scheduling.simulation.ranks import PLAIN, SharingModel
from testbed.scheduling.simulation.run import SimulatedRun
from testbed.scheduling.simulation.sharing import simulate_sharing
from testbed.scheduling.simulation.speeds import NodeSpeeds
from testbed.scheduling.workload.jobs import Job

_ROUNDING = 1e-9


def loop_of(policy: Policy) -> Callable[..., object] | None:
    """Return the kernel that simulates whole traces under a policy, None for a policy that decides on views.

    The kernel is the event loop. For policies that are only a queue for whole nodes, it is a loop that keeps the queue
    and the ends of jobs in order between events.
    """
    if is_queue(policy):
        return run_to_end
    if has_kernels(policy):
        return event_loop(policy.kernels)
    return None


def must_compile(loop: Callable[..., object] | None) -> bool:
    """Whether the first simulation by a loop compiles it: numba is installed, and no code is cached."""
    return loop is not None and can_compile() and not is_cached(loop)


def simulate(
    jobs: Sequence[Job],
    nodes: int,
    policy: Policy,
    overheads: Overheads | None = None,
    debug: bool = False,
    *,
    node_memory_gb: float = DEFAULT_NODE_MEMORY_GB,
    compiling: Compiling = AT_ONCE,
    record: bool = False,
    sharing: SharingModel | None = None,
    speeds: NodeSpeeds | None = None,
    needs: NeedsModel | None = None,
) -> SimulatedRun:
    """Run `jobs`, sorted by submission, on `nodes` nodes of `node_memory_gb` (1e9 bytes) under `policy`.

    `overheads` are the costs of resumes and migrations, by default the 300 s of [RR 5.1]. `debug` checks every decision
    and every end. `record` keeps the changes by every decision. Policies with kernels run compiled if numba is
    installed, according to `compiling`, with the same bits as without it. `sharing` is the model of programs for
    policies under which jobs compete by shares, or tasks divide the CPU of their job; under the former, overheads do
    not count yet. `speeds` are the speeds of nodes over time, if they change, for policies that `can_pace`. `needs` are
    the real needs of jobs over their work. Without it declared needs count, unless a job has a real need, or the policy
    estimates needs.
    Raises UserError when there are no jobs or nodes, jobs are not sorted, or one can never run; RunError when jobs
    wait for ever or a check fails.
    """
    check_trace(jobs, nodes)
    shapes: set[tuple[float, ...]] = set()  # long traces have few shapes, and each test takes 100 µs
    for job in jobs:
        shape = (job.tasks, job.cpu_need_frac, job.mem_req_frac, job.urgent, job.least_yield_frac)
        if shape in shapes:
            continue
        shapes.add(shape)
        if not can_ever_run(policy, job, nodes):
            raise UserError(
                f"job {job.job_id} can never run on {nodes} nodes under {policy.name}: "
                f"{job.tasks} tasks with {job.mem_req_frac:g} of the memory of a node each, and a CPU need of "
                f"{job.cpu_need_frac:g}"
            )
    _check_periods(jobs, policy.period_s)
    _check_speeds(speeds, nodes, policy)
    model = constant(DEFAULT_PENALTY_S) if overheads is None else overheads
    _check_memory(jobs, model, node_memory_gb)
    table = model.table(node_memory_gb)
    if needs is None or is_queue(policy):
        needs = needs_of(jobs, policy, needs)
    if needs is not None and (speeds is not None or not can_pace(policy)):
        raise UserError(
            f"policy {policy.name}: CPU needs that are not as declared: expected a policy without shares that move, "
            "and nodes of constant speed"
        )
    if isinstance(policy, SharingPolicy):
        return simulate_sharing(jobs, nodes, policy, sharing or PLAIN, record=record)
    if is_queue(policy) and speeds is None:
        return simulate_batch(jobs, nodes, policy, compiling, overheads=table, record=record)
    return run_loop(
        jobs, nodes, policy, table, debug=debug, compiling=compiling, record=record, sharing=sharing or PLAIN,
        speeds=speeds, needs=needs,
    )  # fmt: skip


def needs_of(jobs: Sequence[Job], policy: Policy, needs: NeedsModel | None) -> NeedsModel | None:
    """Return the model of needs; None if needs are as declared and not estimated, or for policies of whole nodes."""
    if is_queue(policy):
        return None
    if watches_needs(policy) or any(job.real_need_frac != job.cpu_need_frac for job in jobs):
        return needs or NeedsModel()
    return needs if needs is not None and needs.changes else None


def can_pace(policy: Policy) -> bool:
    """Whether nodes with changing speeds can be simulated under this policy: not with shares that move."""
    return not isinstance(policy, SharingPolicy | DividingPolicy)


def _check_speeds(speeds: NodeSpeeds | None, nodes: int, policy: Policy) -> None:
    if speeds is None:
        return
    if speeds.nodes != nodes:
        raise UserError(f"speeds of {speeds.nodes} nodes: expected those of {nodes}")
    if not can_pace(policy):
        raise UserError(f"policy {policy.name}: nodes whose speed changes: expected a policy without shares that move")


def _check_memory(jobs: Sequence[Job], overheads: Overheads, node_memory_gb: float) -> None:
    """Raise UserError for a task that is much larger than those for which the overheads were measured."""
    largest = max(jobs, key=lambda job: job.mem_req_frac)
    memory_gb = largest.mem_req_frac * node_memory_gb
    if memory_gb > overheads.most_memory_gb * (1.0 + _ROUNDING):
        raise UserError(
            f"overheads {overheads.name}: tasks of job {largest.job_id} have {memory_gb:.3g} GB, more than twice what "
            f"was measured: expected at most {overheads.most_memory_gb:.3g} GB, or the model FILE.toml#{EXTRAPOLATE}"
        )


def check_trace(jobs: Sequence[Job], nodes: int) -> None:
    """Raise UserError when there are no jobs or nodes, or when jobs are not sorted by submission."""
    if not jobs or not 1 <= nodes <= MOST_NODES:
        raise UserError(
            f"{len(jobs)} jobs on {nodes} nodes: a simulation needs at least one of each, and has at most "
            f"{MOST_NODES} nodes"
        )
    for before, after in pairwise(jobs):
        if after.submit_time_s < before.submit_time_s:
            raise UserError(f"job {after.job_id} is submitted before job {before.job_id}: sort jobs by submit time")


def _check_periods(jobs: Sequence[Job], period_s: float | None) -> None:
    longest = max(jobs, key=lambda job: job.run_time_s)
    if period_s and longest.run_time_s / period_s > MOST_EVENTS:
        raise UserError(
            f"period of {period_s:g} s: job {longest.job_id} of {longest.run_time_s:g} s has "
            f"{longest.run_time_s / period_s:.3g} of them: expected at most {MOST_EVENTS:.3g}"
        )
