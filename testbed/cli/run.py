"""`testbed run`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from testbed.errors import UserError

if TYPE_CHECKING:
    from testbed.control.session import RunResult
    from testbed.scenario.schema import Scenario
    from testbed.scheduling.policies.view import Policy
    from testbed.scheduling.workload.jobs import Job


@click.command()
@click.argument("scenario", type=click.Path(path_type=Path), required=False)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help="Policy instead of the scenario's; several run one after the other.",
)
@click.option("--trace", type=click.Path(path_type=Path), help="Trace file instead of the scenario's.")
@click.option(
    "--time-scale", type=float, metavar="X", help="Trace seconds in a wall second, instead of the scenario's."
)
@click.option("--seed", type=click.IntRange(min=0), help="Seed instead of the scenario's.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Where run directories go.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Rehearse with nodes that do nothing, in virtual time, and print the plan.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summaries as JSON on standard output.")
@click.option("--list", "list_packaged", is_flag=True, help="List the packaged scenarios.")
def run(
    *, scenario: Path | None, policies: tuple[str, ...], trace: Path | None, time_scale: float | None,
    seed: int | None, out: Path, dry_run: bool, as_json: bool, list_packaged: bool,
) -> int:  # fmt: skip
    """Replay the jobs of SCENARIO on live nodes under its policy, and measure it.

    SCENARIO is a path, or the name of a packaged scenario: `testbed run --list` names them. A file wins over a name.

    Exit code 0: every job ended well; 1: a job or the run failed; 2: something in the input is wrong; 130: interrupted
    (what was measured is kept).

    \b
    Examples:
      testbed run --list
      testbed run quickstart
      testbed run my-scenario.toml --dry-run
      testbed run quickstart --policy EASY --policy "GreedyPM */per/OPT=MIN/MINVT=600"
    """  # noqa: D301  # \b keeps click from wrapping the examples
    from testbed.cli.launch import launch  # noqa: PLC0415  # --help stays quick
    from testbed.measure.recorders import find_recorders  # noqa: PLC0415  # --help stays quick
    from testbed.packaged import find_scenario  # noqa: PLC0415  # --help stays quick
    from testbed.scenario.jobs import load_jobs  # noqa: PLC0415  # --help stays quick
    from testbed.scenario.schema import load_scenario, override  # noqa: PLC0415  # --help stays quick
    from testbed.scheduling.policies.catalogue import parse  # noqa: PLC0415  # --help stays quick

    if list_packaged:
        _list()
        return 0
    if scenario is None:
        raise UserError("no SCENARIO; `testbed run --list` has the packaged ones")
    path = find_scenario(scenario)
    chosen: Scenario = override(load_scenario(path), policies=policies, trace=trace, time_scale=time_scale, seed=seed)
    parsed: Sequence[Policy] = [parse(name, chosen.period_s) for name in chosen.policy]
    jobs: Sequence[Job] = load_jobs(chosen, path)
    find_recorders(chosen.recorders)  # a name that is wrong is told now
    if dry_run:  # a rehearsal measures nothing that anybody should keep
        chosen = chosen.model_copy(update={"recorders": ()})
    results: Sequence[RunResult] = launch(chosen, parsed, jobs, out, dry_run=dry_run, as_json=as_json)
    return 0 if all(result.summary["done"] == result.summary["jobs"] for result in results) else 1


def _list() -> None:
    from testbed.packaged import packaged_scenarios  # noqa: PLC0415  # as above
    from testbed.scenario.schema import load_scenario  # noqa: PLC0415  # --help stays quick

    known = packaged_scenarios()
    width = max(map(len, known))
    for name, path in known.items():
        click.echo(f"{name:{width}}  {load_scenario(path).description}")
