"""`testbed serve`: serves a lab, to which users submit jobs."""

from __future__ import annotations

from pathlib import Path

from testbed.cli.bodies.launch import all_well, launch_served
from testbed.measure.recorders import find_recorders
from testbed.packaged import find_scenario
from testbed.scenario.schema import load_scenario, override
from testbed.scheduling.policies.catalogue import parse


def serve(*, scenario: Path, policy: str | None, out: Path, as_json: bool) -> int:
    chosen = override(load_scenario(find_scenario(scenario)), policies=() if policy is None else (policy,))
    find_recorders(chosen.recorders)  # reports a wrong name before the run
    result = launch_served(chosen, parse(chosen.policy[0], chosen.period_s), out, as_json=as_json)
    return 0 if all_well(result) else 1
