"""Names on the command line and in campaigns, for simulation: a policy, or a measure of a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from testbed.scheduling.policies.backfill import is_queue
from testbed.scheduling.policies.catalogue import EQUIPARTITION, parse
from testbed.scheduling.policies.configuration import DEFAULT_PERIOD_S
from testbed.scheduling.policies.view import Policy
from testbed.scheduling.simulation.compiling import AT_ONCE, Compiling
from testbed.scheduling.simulation.fluid import equipartition
from testbed.scheduling.simulation.overheads import DEFAULT_NODE_MEMORY_GB, Overheads
from testbed.scheduling.simulation.ranks import SharingModel
from testbed.scheduling.simulation.run import SimulatedRun
from testbed.scheduling.simulation.simulate import check_trace, loop_of, simulate
from testbed.scheduling.workload.jobs import Job

MEASURES: Mapping[str, Callable[[Sequence[Job], int], SimulatedRun]] = {EQUIPARTITION: equipartition}


@dataclass(frozen=True, slots=True)
class Named:
    """A canonical name, and its policy: None for a measure of a trace, which has no decisions."""

    name: str
    policy: Policy | None

    @property
    def is_fractional(self) -> bool:
        """Whether a policy shares nodes among jobs: batch policies and measures of a trace do not."""
        return self.policy is not None and not is_queue(self.policy)

    @property
    def loop(self) -> Callable[..., object] | None:
        """The kernel that simulates the policy, which may be compiled; None if there is none."""
        return None if self.policy is None else loop_of(self.policy)

    def simulate(
        self,
        jobs: Sequence[Job],
        nodes: int,
        overheads: Overheads | None = None,
        debug: bool = False,
        *,
        node_memory_gb: float = DEFAULT_NODE_MEMORY_GB,
        compiling: Compiling = AT_ONCE,
        sharing: SharingModel | None = None,
    ) -> SimulatedRun:
        """Return the run of a trace: see `simulation.simulate.simulate`. Measures have no overheads."""
        if self.policy is not None:
            return simulate(
                jobs, nodes, self.policy, overheads, debug, node_memory_gb=node_memory_gb, compiling=compiling,
                sharing=sharing,
            )  # fmt: skip
        check_trace(jobs, nodes)
        return MEASURES[self.name](jobs, nodes)


def named(name: str, period_s: float = DEFAULT_PERIOD_S) -> Named:
    """Return the policy or measure of a name, in the syntax of `policies.catalogue.parse`; raises UserError."""
    plain = "".join(name.split()).upper()
    if plain in MEASURES:
        return Named(plain, None)
    policy = parse(name, period_s)
    return Named(policy.name, policy)
