"""`testbed run`: replays a scenario live, or in a dry run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from testbed.cli.bodies.launch import launch
from testbed.control.session import RunResult
from testbed.errors import UserError
from testbed.measure.recorders import find_recorders
from testbed.packaged import find_scenario, packaged_scenarios
from testbed.scenario.jobs import load_jobs
from testbed.scenario.schema import Scenario, load_scenario, override
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.view import Policy
from testbed.scheduling.workload.jobs import Job


def run(
    *, scenario: Path | None, policies: tuple[str, ...], trace: Path | None, time_scale: float | None,
    repeats: int, seed: int | None, out: Path, dry_run: bool, as_json: bool, list_packaged: bool,
) -> int:  # fmt: skip
    if list_packaged:
        _list()
        return 0
    if scenario is None:
        raise UserError("no SCENARIO; `testbed run --list` has the packaged ones")
    path = find_scenario(scenario)
    chosen: Scenario = override(load_scenario(path), policies=policies, trace=trace, time_scale=time_scale, seed=seed)
    parsed: Sequence[Policy] = [parse(name, chosen.period_s) for name in chosen.policy]
    jobs: Sequence[Job] = load_jobs(chosen, path, None if trace is None else _tell)
    find_recorders(chosen.recorders)  # reports a wrong name before the run
    if dry_run:  # figures of a dry run are no measurements
        chosen = chosen.model_copy(update={"recorders": ()})
    results: Sequence[RunResult] = launch(chosen, [*parsed] * repeats, jobs, out, dry_run=dry_run, as_json=as_json)
    return 0 if all(result.summary["done"] == result.summary["jobs"] for result in results) else 1


def _tell(line: str) -> None:
    click.echo(f"testbed: {line}", err=True)


def _list() -> None:
    known = packaged_scenarios()
    width = max(map(len, known))
    for name, path in known.items():
        click.echo(f"{name:{width}}  {load_scenario(path).description}")
