"""The input and the decision of a policy: flat arrays, no clock, no I/O.

Jobs are rows, in order of submission. The tasks of row j are the elements `offset[j]:offset[j + 1]` of
`task_node`, where `offset` is the running sum of `tasks`; tasks of a job are interchangeable.
Simulated and live runs pass the same arrays. The journal contains all of them, so that a recorded decision can be
reproduced bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from testbed.scheduling.workload.jobs import Job

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NOT_PLACED = -1


class JobState(IntEnum):
    """The state of a job that was submitted and has not ended."""

    WAITING = 0
    RUNNING = 1
    PAUSED = 2


@dataclass(frozen=True, slots=True, eq=False)
class ClusterView:
    """The cluster at one instant, J jobs and N nodes; times in trace seconds, needs as fractions of a node.

    A running job may be on a node that is no longer available; a decision must not place tasks there.
    """

    time_s: float
    node_available: NDArray[np.bool_]  # (N,)
    job_id: Ints  # (J,)
    submit_time_s: Floats  # (J,)
    tasks: Ints  # (J,)
    cpu_need_frac: Floats  # (J,)
    mem_req_frac: Floats  # (J,)
    virtual_time_s: Floats  # (J,)
    state: NDArray[np.int8]  # (J,) of JobState
    task_node: Ints  # (sum of tasks,), NOT_PLACED for every task of a job that is not running
    start_time_s: Floats  # (J,) first start, NaN before it
    estimate_s: Floats  # (J,) NaN unless the policy has `needs_estimates`
    urgent: NDArray[np.bool_]  # (J,) whether other jobs may be paused for it
    weight: Floats | None = None  # (J,) of jobs; None if all are 1
    least_yield_frac: Floats | None = None  # (J,) guaranteed while a job runs; None if all are 0
    move_cost_s: Floats | None = None  # (J,) seconds that a move stops it; None unless `CostAwarePolicy`
    image_node: Ints | None = None  # (sum of tasks,) node of a paused task's image, else NOT_PLACED; None as above


def unless(values: Floats, usual: float) -> Floats | None:
    """Return the column of a view, or None if all values equal `usual`."""
    return None if bool(np.all(values == usual)) else values


@dataclass(frozen=True, slots=True)
class Event:
    """The changes since the last decision, coalesced; handled in the order of the fields [RR 4.4].

    `completed` holds ids of jobs that are no longer in the view; `submitted` ids of jobs that are in it,
    waiting, in order of submission: they are handled one by one, and the decision for one does not depend on later
    ones. Jobs that a `WakingPolicy` wants to try again now are among them. `changed` says that the set of available
    nodes changed or that an action failed.
    """

    completed: tuple[int, ...] = ()
    submitted: tuple[int, ...] = ()
    periodic: bool = False
    changed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """The nodes and the yield of every job, with rows and tasks as in the view.

    Every task of a running job has a node, and the job a yield in (0, 1]; other jobs have NOT_PLACED and 0.
    """

    task_node: Ints  # (sum of tasks,)
    yield_frac: Floats  # (J,)


class Policy(Protocol):
    """A scheduling policy: a frozen configuration and one pure function."""

    @property
    def name(self) -> str:
        """The catalogue name, in canonical form."""

    @property
    def needs_estimates(self) -> bool:
        """Whether views contain run time estimates (for batch policies)."""

    @property
    def period_s(self) -> float | None:
        """Seconds of trace time between periodic passes, which are at multiples of it; None for no passes."""

    def can_ever_run(self, tasks: int, mem_req_frac: float, nodes: int) -> bool:
        """Whether a job of this shape fits an empty cluster of `nodes` nodes under this policy."""

    def decide(self, view: ClusterView, event: Event) -> Decision:
        """Return the decision at an event; the view is not changed."""


@runtime_checkable
class WakingPolicy(Policy, Protocol):
    """A policy that tries waiting jobs again at instants that it chooses."""

    def next_wake_s(self, view: ClusterView) -> float | None:
        """Return the next such instant after the time of the view, in trace seconds, or None if there is none."""

    def retried(self, view: ClusterView, since_s: float) -> tuple[int, ...]:
        """Return the ids of the jobs whose instant lies in (`since_s`, time of the view]."""


@runtime_checkable
class BookingPolicy(Policy, Protocol):
    """A policy that never books more CPU than a node has, so that a job may need too much CPU to ever start."""

    def can_ever_start(
        self, tasks: int, cpu_need_frac: float, mem_req_frac: float, nodes: int, *, urgent: bool
    ) -> bool:  # fmt: skip
        """Whether a job of this shape fits an empty cluster of `nodes` nodes; it replaces `Policy.can_ever_run`."""


@runtime_checkable
class GuaranteeingPolicy(Policy, Protocol):
    """A policy that may guarantee yields to jobs."""

    @property
    def knows_guarantees(self) -> bool:
        """Whether jobs that run have at least their `least_yield_frac`."""

    def can_ever_guarantee(self, tasks: int, cpu_frac: float, nodes: int) -> bool:
        """Whether `nodes` empty nodes can always give each of these tasks `cpu_frac`, a fraction of a node."""


def can_ever_run(policy: Policy, job: Job, nodes: int) -> bool:
    """Whether a job fits an empty cluster of `nodes` nodes under a policy, with its guaranteed yield."""
    cpu_frac = job.cpu_need_frac * job.least_yield_frac
    if isinstance(policy, GuaranteeingPolicy) and not policy.can_ever_guarantee(job.tasks, cpu_frac, nodes):
        return False
    if isinstance(policy, BookingPolicy):
        return policy.can_ever_start(job.tasks, job.cpu_need_frac, job.mem_req_frac, nodes, urgent=job.urgent)
    return policy.can_ever_run(job.tasks, job.mem_req_frac, nodes)


@runtime_checkable
class CostAwarePolicy(Policy, Protocol):
    """A policy that may use the costs of moves."""

    @property
    def knows_costs(self) -> bool:
        """Whether views contain the trace seconds for which a move to other nodes would stop each job."""


def knows_costs(policy: Policy) -> bool:
    """Whether a policy uses the costs of moves."""
    return isinstance(policy, CostAwarePolicy) and policy.knows_costs


ExchangeMode = Literal["none", "distributed", "bank"]


@runtime_checkable
class SharingPolicy(Policy, Protocol):
    """A policy under which tasks compete by shares instead of being capped; all its yields are 1.

    The CPU need of a task is the share of its node that is booked for it, which it gets while others want the rest.
    `exchange` is the mode in which the tasks of a job give each other unused shares (`testbed.shares`).
    """

    @property
    def exchange(self) -> ExchangeMode:
        """The mode in which shares move; under `none` they stay as booked."""


def event_at(
    policy: Policy,
    view: ClusterView,
    since_s: float,
    *,
    completed: Iterable[int] = (),
    submitted: Iterable[int] = (),
    periodic: bool = False,
    changed: bool = False,
) -> Event:
    """Return the event at the instant of `view`, with all changes after `since_s`; all kinds of runs use it.

    `completed` and `submitted` are ids of jobs. Jobs that a `WakingPolicy` tries again take their places among the
    submitted ones in order of submission, so that a younger job never goes before them. Submitted jobs that are not in
    the view are left out, as the policy cannot place them.
    """
    told = set(submitted)
    if isinstance(policy, WakingPolicy):
        told.update(policy.retried(view, since_s))
    return Event(
        completed=tuple(completed),
        submitted=tuple(job_id for job_id in view.job_id.tolist() if job_id in told),
        periodic=periodic,
        changed=changed,
    )
