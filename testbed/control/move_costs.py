"""What policies may know of the cost of moves, by the overhead model of a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from testbed.errors import UserError, shown
from testbed.scenario.schema import Scenario
from testbed.scheduling.policies.view import Floats, Policy, knows_costs
from testbed.scheduling.simulation.moving import move_costs_s
from testbed.scheduling.simulation.overheads_file import LIVE, SAVE_AND_RESTORE, load_ways
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


class WayCosts:
    """What migrations cost a job, live or by images, by a calibration of the lab."""

    def __init__(self, calibration: str, node_memory_gb: float) -> None:
        self._ways = {way: overheads.table(node_memory_gb) for way, overheads in load_ways(Path(calibration)).items()}

    def live_is_cheaper(self, job: Job) -> bool:
        """Whether a live migration of all tasks of a job stops it for less time than images."""
        live_s, by_images_s = (float(move_costs_s([job], self._ways[way])[0]) for way in (LIVE, SAVE_AND_RESTORE))
        return live_s < by_images_s


def way_costs(scenario: Scenario) -> WayCosts | None:
    """Return what each way of a migration costs, None where the scenario does not choose by that.

    Raises `UserError` where it names no calibration with both.
    """
    if scenario.migration.mechanism != "cheaper":
        return None
    if scenario.overheads is None or not scenario.overheads.lower().endswith(".toml"):
        raise UserError(
            f"overheads = {shown(scenario.overheads or '', 60)}: [migration] mechanism = 'cheaper' compares what was "
            "measured: expected the file of a calibration with live migrations, such as 'calibration.toml'"
        )
    return WayCosts(scenario.overheads, scenario.nodes[0].memory_mib * 2**20 / 1e9)
