"""Base of policies with a suffix: what they do not define is as in the policy before the suffix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from testbed.scheduling.policies.dfrs import DfrsPolicy
from testbed.scheduling.policies.view import ClusterView, Decision, Event, knows_costs


@dataclass(frozen=True, slots=True)
class WrappedPolicy(ABC):
    """Base class of policies with a suffix after the name of `policy`, which decides if the subclass does not."""

    policy: DfrsPolicy | WrappedPolicy

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the policy, and the suffix."""

    @property
    def needs_estimates(self) -> bool:
        """See `Policy.needs_estimates`."""
        return self.policy.needs_estimates

    @property
    def period_s(self) -> float | None:
        """See `Policy.period_s`."""
        return self.policy.period_s

    @property
    def knows_costs(self) -> bool:
        """See `CostAwarePolicy`."""
        return knows_costs(self.policy)

    def can_ever_run(self, tasks: int, mem_req_frac: float, nodes: int) -> bool:
        """See `Policy.can_ever_run`."""
        return self.policy.can_ever_run(tasks, mem_req_frac, nodes)

    @property
    def knows_guarantees(self) -> bool:
        """See `GuaranteeingPolicy`."""
        return self.policy.knows_guarantees

    def can_ever_guarantee(self, tasks: int, cpu_frac: float, nodes: int) -> bool:
        """See `GuaranteeingPolicy`."""
        return self.policy.can_ever_guarantee(tasks, cpu_frac, nodes)

    def next_wake_s(self, view: ClusterView) -> float | None:
        """See `WakingPolicy.next_wake_s`."""
        return self.policy.next_wake_s(view)

    def retried(self, view: ClusterView, since_s: float) -> tuple[int, ...]:
        """See `WakingPolicy.retried`."""
        return self.policy.retried(view, since_s)

    def decide(self, view: ClusterView, event: Event) -> Decision:
        """Return the decision of the policy."""
        return self.policy.decide(view, event)
