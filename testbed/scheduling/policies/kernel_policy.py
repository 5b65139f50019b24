"""Policies whose decisions a kernel makes: on the arrays of a view for live nodes, compiled in a loop in simulations.

A kernel of a policy works on the named arrays of `testbed.scheduling.policies.state`, in place. It needs nothing but
numpy; `testbed.scheduling.compiler` describes what a kernel may use so that it can be compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple, Protocol, TypeGuard

import numpy as np

from testbed.errors import UserError
from testbed.scheduling.compiler import is_kernel, lean_kernel
from testbed.scheduling.policies.capacity import offsets, tasks_per_node
from testbed.scheduling.policies.moves import keep_places
from testbed.scheduling.policies.state import Cluster, Jobs, Mask
from testbed.scheduling.policies.view import ClusterView, Decision, Event, Floats, Ints, JobState, Policy

Decide = Callable[[Any, Jobs, Cluster, float, Ints, Ints, bool, bool], None]
"""(rules, jobs, cluster, time_s, active, submitted, freed, periodic), as `policies.decision.decide`."""
NextWake = Callable[[Any, Floats, Mask, float, Ints], float]
"""(rules, submit_time_s, running, time_s, active): see `Kernels`."""


@lean_kernel
def never_wakes(rules: Any, submit_time_s: Floats, running: Mask, time_s: float, active: Ints) -> float:  # noqa: ARG001 - the form of `NextWake`
    """Return infinity: the policy acts at events only."""
    return inf


class Kernels(NamedTuple):
    """The kernels of a policy for the event loop, under the names by which the loop calls them.

    `next_wake_s` returns the next instant after `time_s` at which the loop must call the policy again, or infinity;
    `submit_time_s` and `running` are those of `Jobs` and `Cluster`.
    """

    decide: Decide
    next_wake_s: NextWake = never_wakes


class CompilablePolicy(Policy, Protocol):
    """A policy that decides by kernels alone, with `rules`, a named tuple of numbers."""

    @property
    def kernels(self) -> Kernels:
        """The kernels."""

    @property
    def rules(self) -> Any:
        """The rules, which the kernels get as their first argument.

        If the policy has a true attribute `needs_columns`, its kernels get `RulesAndColumns` instead.
        """


class JobColumns(NamedTuple):
    """Columns of J jobs that only some kernels need, beside `Jobs`."""

    start_time_s: Floats  # (J,) NaN before the first start; the simulator changes it in place
    estimate_s: Floats  # (J,) NaN unless the policy has `needs_estimates`
    urgent: Mask  # (J,)
    move_cost_s: Floats  # (J,) NaN unless the policy is a `CostAwarePolicy`
    image_node: Ints  # (sum of tasks,) the node of the image of each task of a paused job; undefined for other jobs


class RulesAndColumns(NamedTuple):
    """The first argument of the kernels of a policy with `needs_columns`."""

    rules: Any
    columns: JobColumns


def first_argument(policy: CompilablePolicy, columns: JobColumns) -> Any:
    """Return the first argument of the kernels of a policy."""
    return RulesAndColumns(policy.rules, columns) if getattr(policy, "needs_columns", False) else policy.rules


def has_kernels(policy: Policy) -> TypeGuard[CompilablePolicy]:
    """Whether a policy declares that kernels make all of its decisions."""
    return isinstance(getattr(policy, "kernels", None), Kernels)


_compiled: dict[Decide, Decide] = {}  # kernels whose compiled form decides in this process


def decide_by(kernel: Decide, compiled_form: Decide) -> None:
    """Use the compiled form of a kernel for views from now on in this process."""
    _compiled[kernel] = compiled_form


def arrays_of(view: ClusterView) -> tuple[Jobs, Cluster]:
    """Return the arrays of a view, for kernels that change them."""
    # Copies: for numba read-only arrays are other types, for which the kernel would be compiled again.
    jobs = Jobs(
        submit_time_s=view.submit_time_s.copy(),
        offset=offsets(view.tasks),
        cpu_need_frac=view.cpu_need_frac.copy(),
        mem_req_frac=view.mem_req_frac.copy(),
        weight=np.ones(view.tasks.size) if view.weight is None else view.weight.copy(),
        least_yield_frac=np.zeros(view.tasks.size) if view.least_yield_frac is None else view.least_yield_frac.copy(),
    )
    cluster = Cluster(
        node_available=view.node_available.copy(),
        virtual_time_s=view.virtual_time_s.copy(),
        running=view.state == JobState.RUNNING,
        task_node=view.task_node.copy(),
        yield_frac=np.zeros(view.tasks.size),
    )
    return jobs, cluster


def as_decision(view: ClusterView, jobs: Jobs, cluster: Cluster) -> Decision:
    """Return the decision that a kernel wrote to the arrays of a view; as few tasks as possible change their nodes."""
    nodes = view.node_available.size
    return Decision(keep_places(jobs.offset, view.task_node, cluster.task_node, nodes), cluster.yield_frac)


def decide_view(kernels: Kernels, rules: Any, view: ClusterView, event: Event) -> Decision:
    """Return a kernel's decision on an event; raises ValueError if it names a submitted job that is not in the view."""
    jobs, cluster = arrays_of(view)
    _compiled.get(kernels.decide, kernels.decide)(
        rules,
        jobs,
        cluster,
        float(view.time_s),
        np.arange(view.tasks.size),
        np.array([_row(view, job_id) for job_id in event.submitted], dtype=np.int64),
        bool(event.completed or event.changed),
        event.periodic,
    )
    return as_decision(view, jobs, cluster)


def _row(view: ClusterView, job_id: int) -> int:
    rows = np.flatnonzero(view.job_id == job_id)
    if rows.size != 1:
        raise ValueError(f"submitted job {job_id}: {rows.size} rows in the view, expected 1")
    return int(rows[0])


@dataclass(frozen=True, slots=True)
class KernelPolicy:
    """A policy that consists of kernels and rules; a job can run if the memory of empty nodes holds its tasks.

    Raises UserError for a function that is not marked as a kernel.
    """

    name: str
    kernels: Kernels
    rules: Any = ()
    period_s: float | None = None

    def __post_init__(self) -> None:
        for what, function in self.kernels._asdict().items():
            if not is_kernel(function):
                raise UserError(
                    f"policy {self.name}: {what} = {function.__qualname__}: expected a function marked with "
                    "testbed.scheduling.compiler.kernel"
                )

    @property
    def needs_estimates(self) -> bool:
        """False, as these kernels do not get run times."""
        return False

    def can_ever_run(self, tasks: int, mem_req_frac: float, nodes: int) -> bool:
        """Whether the memory of `nodes` empty nodes holds `tasks` tasks; CPU never prevents that."""
        return tasks <= nodes * tasks_per_node(mem_req_frac)

    def decide(self, view: ClusterView, event: Event) -> Decision:
        """Return the decision on an event; raises ValueError if it names a submitted job that is not in the view."""
        return decide_view(self.kernels, self.rules, view, event)
