"""What policies may know of the cost of moves, by the overhead model of a scenario."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.errors import UserError
from testbed.scenario.schema import Scenario
from testbed.scheduling.policies.view import Floats, Policy, knows_costs
from testbed.scheduling.simulation.moving import move_costs_s
from testbed.scheduling.simulation.overheads_parser import parse_overheads
from testbed.scheduling.workload.jobs import Job


class MoveCosts:
    """The seconds for which moves stop jobs, in trace time; models of a lab's clock are taken times the time scale.

    Raises `UserError` for an unknown model.
    """

    def __init__(self, model: str, node_memory_gb: float, time_scale: float) -> None:
        overheads = parse_overheads(model)
        if overheads.wall_clock:
            overheads = overheads.scaled(time_scale)
        self._table = overheads.table(node_memory_gb)

    def of(self, jobs: Sequence[Job]) -> Floats:
        """Return how long a move of all its tasks, and of no others, stops each job (J,)."""
        return move_costs_s(jobs, self._table)


def known_costs(policy: Policy, scenario: Scenario) -> MoveCosts | None:
    """Return what a policy is told of moves, None if it wants to know nothing.

    Raises `UserError` where the scenario names no model for a policy that wants to, or one that cannot be read.
    """
    if not knows_costs(policy):
        return None
    if scenario.overheads is None:
        raise UserError(
            f"overheads: policy {policy.name} knows what moves cost: expected a model in the scenario, such as "
            "overheads = 'calibration.toml' (`testbed calibrate`) or 'constant:300'"
        )
    return MoveCosts(scenario.overheads, scenario.nodes[0].memory_mib * 2**20 / 1e9, scenario.time_scale)
