"""EQUIPARTITION [RR 3.2]: the theory's point of comparison, for simulation only."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.errors import UserError
from testbed.policies.view import ClusterView, Decision, Event


@dataclass(frozen=True, slots=True)
class Equipartition:
    """A fluid share of the whole platform for every job that has not ended, memory and placement ignored.

    The platform is one machine of as much CPU as there are nodes. Every job gets the same share of it, but never
    more than its total CPU need; what one does not use is shared by the others. There is no map, so there is
    nothing that nodes could do: `simulate` knows this class, and live nodes cannot run it.
    """

    name: str = "EQUIPARTITION"

    @property
    def needs_estimates(self) -> bool:
        """It knows nothing of run times."""
        return False

    @property
    def period_s(self) -> float | None:
        """It acts on events only."""
        return None

    def can_ever_run(self, tasks: int, mem_req_frac: float, nodes: int) -> bool:  # noqa: ARG002 - memory is ignored
        """Every job progresses on any platform that has a node."""
        return nodes > 0

    def decide(self, view: ClusterView, event: Event) -> Decision:  # noqa: ARG002 - the protocol's
        """Raise UserError: there is no map to answer with."""
        raise UserError(
            f"policy {self.name}: shares the platform as one machine, without places; it can only be simulated"
        )
