"""Costs of preemptions and migrations that policies may know, from the overhead model of a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path

from testbed.errors import UserError, shown
from testbed.scenario.schema import Scenario
from testbed.scheduling.policies.view import Floats, Policy, knows_costs
from testbed.scheduling.simulation.moving import move_costs_s
from testbed.scheduling.simulation.overheads import LIVE, SAVE_AND_RESTORE
from testbed.scheduling.simulation.overheads_file import has_ways, load_live_mib_per_s, load_ways
from testbed.scheduling.simulation.overheads_parser import CHEAPER, EXTRAPOLATE, parse_overheads, split_file
from testbed.scheduling.workload.jobs import Job


class WayCosts:
    """The costs of a job's migrations, live and by images, from a calibration of the lab.

    A live migration sends memory again that was written meanwhile. At B MiB/s sent and D MiB/s written, the memory sent
    in all rounds is B / (B - D) times that of a guest that writes nothing; from D = B on it never ends. A calibration
    whose guests stand still while they are copied has no B: there, writing costs nothing more.
    """

    def __init__(self, calibration: str, node_memory_gb: float) -> None:
        ways = load_ways(Path(calibration))
        self._live = ways[LIVE]
        self._by_images = ways[SAVE_AND_RESTORE].table(node_memory_gb)
        self._sent_mib_per_s = load_live_mib_per_s(Path(calibration))
        self._node_memory_gb = node_memory_gb

    def of(self, job: Job, dirty_mib_per_s: float) -> tuple[float, float]:
        """Return the wall seconds for which a migration of all tasks of a job stops it, live and by images."""
        return self._live_s(job, dirty_mib_per_s), float(move_costs_s([job], self._by_images)[0])

    def _live_s(self, job: Job, dirty_mib_per_s: float) -> float:
        sent = self._sent_mib_per_s or inf
        if dirty_mib_per_s >= sent:
            return inf
        rounds = 1.0 if sent == inf else sent / (sent - dirty_mib_per_s)
        return float(move_costs_s([job], self._live.table(self._node_memory_gb * rounds))[0])

    def live_is_cheaper(self, job: Job, dirty_mib_per_s: float) -> bool:
        """Whether a live migration of all tasks of a job stops it for less time than a save and restore."""
        live_s, by_images_s = self.of(job, dirty_mib_per_s)
        return live_s < by_images_s


class MoveCosts:
    """The trace seconds for which moves stop jobs; a model in wall seconds is multiplied by the time scale.

    With `ways` a job whose tasks write to their memory moves by the cheaper way at that rate. Raises `UserError` for an
    unknown model.
    """

    def __init__(self, model: str, node_memory_gb: float, time_scale: float, ways: WayCosts | None = None) -> None:
        overheads = parse_overheads(model)
        if overheads.wall_clock:
            overheads = overheads.scaled(time_scale)
        self._table = overheads.table(node_memory_gb)
        self._time_scale = time_scale
        self._ways = ways

    def of(self, jobs: Sequence[Job], dirty_mib_per_s: Sequence[float]) -> Floats:
        """Return the time for which a move of all tasks of a job, and of no other job, stops it, for each job (J,).

        `dirty_mib_per_s` (J,) has the highest rate at which a task of each job writes to its memory.
        """
        costs_s = move_costs_s(jobs, self._table)
        if self._ways is not None:
            for row, (job, dirty) in enumerate(zip(jobs, dirty_mib_per_s, strict=True)):
                if dirty > 0.0:
                    costs_s[row] = min(self._ways.of(job, dirty)) * self._time_scale
        return costs_s


def known_costs(policy: Policy, scenario: Scenario) -> MoveCosts | None:
    """Return the costs of moves for a policy that uses them, None for other policies.

    If the model is a file with the costs of each mechanism of migration, those of the scenario's mechanism count.
    Raises `UserError` if the policy uses costs, and the scenario names no model or one that cannot be read.
    """
    if not knows_costs(policy):
        return None
    if scenario.overheads is None:
        raise UserError(
            f"overheads: policy {policy.name} uses the cost of moves: expected a model in the scenario, such as "
            "overheads = 'calibration.toml' (`testbed calibrate`) or 'constant:300'"
        )
    file, key = split_file(scenario.overheads)
    model = scenario.overheads
    if file and key in ("", EXTRAPOLATE) and has_ways(Path(file)):
        model = f"{file}#{scenario.migration.mechanism}#{EXTRAPOLATE}"
    return MoveCosts(model, scenario.nodes[0].memory_mib * 2**20 / 1e9, scenario.time_scale, way_costs(scenario))


def way_costs(scenario: Scenario) -> WayCosts | None:
    """Return the cost of each mechanism of migration, None if the scenario does not choose the cheaper one.

    Raises `UserError` if the scenario does so, and names no calibration with both mechanisms.
    """
    if scenario.migration.mechanism != CHEAPER:
        return None
    file, key = split_file(scenario.overheads or "")
    if not file or key not in ("", EXTRAPOLATE):
        raise UserError(
            f"overheads = {shown(scenario.overheads or '', 60)}: [migration] mechanism = 'cheaper' compares measured "
            "costs: expected the file of a calibration with live migrations, such as 'calibration.toml'"
        )
    return WayCosts(file, scenario.nodes[0].memory_mib * 2**20 / 1e9)
