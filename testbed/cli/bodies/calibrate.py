"""`testbed calibrate`: does the trials, fits the model, and writes the calibration file, tables and a page."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.table import Table

from testbed.cli.bodies.interrupts import run_interruptible
from testbed.cli.bodies.progress import Progress, duration
from testbed.errors import UserError
from testbed.lab.bring_up import dry_lab, live_lab
from testbed.packaged import find_scenario
from testbed.scenario.schema import Scenario, check_scenario, load_lab
from testbed.study.calibration.from_trials import calibrate_from
from testbed.study.calibration.model_file import write_calibration
from testbed.study.calibration.registry import broken_experiments, find_experiments
from testbed.study.calibration.session import BLOCKS, QUICK_BLOCKS, Order, Step
from testbed.study.calibration.session import calibrate as do_trials
from testbed.study.calibration.tables import as_json as to_json
from testbed.study.calibration.tables import print_calibration
from testbed.study.calibration.trials import Trials, read_trials
from testbed.study.report.terminal.console import wide_console

_NODE_MIB = 1024


def calibrate(
    *, lab: Path | None, out: Path, quick: bool, repeats: int | None, experiments: str | None, nodes: str | None,
    seed: int, report: bool, fit_only: bool, list_them: bool, dry_run: bool, as_json: bool,
) -> int:  # fmt: skip
    if list_them:
        return _print_experiments(as_json=as_json)
    request = _Request(
        lab=lab, out=out, quick=quick, repeats=repeats, experiments=_names(experiments), nodes=_names(nodes), seed=seed
    )
    if dry_run:
        return _rehearse(request, as_json=as_json)
    return _run(request, measure=not fit_only, report=report, as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Request:
    """The options of the command line."""

    lab: Path | None
    out: Path
    quick: bool
    repeats: int | None
    experiments: tuple[str, ...]
    nodes: tuple[str, ...]
    seed: int

    @property
    def trials(self) -> Path:
        """The folder of the trials."""
        return self.out.with_suffix("") if self.out.suffix else self.out.with_name(self.out.name + ".trials")

    def order(self) -> Order:
        """Return the settings from the options; raises `UserError`."""
        return Order(
            scenario=_this_machine() if self.lab is None else load_lab(find_scenario(self.lab)),
            experiments=tuple(find_experiments(self.experiments)),
            blocks=self.repeats or (QUICK_BLOCKS if self.quick else BLOCKS),
            seed=self.seed,
            quick=self.quick,
            nodes=self.nodes,
        )


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text else ()


def _this_machine() -> Scenario:
    """Return a scenario with two process nodes of one core each, or less on a machine with fewer than two cores."""
    cpus = min(1.0, (os.cpu_count() or 1) / 2)
    nodes = [{"name": name, "cpus": cpus, "memory_mib": _NODE_MIB} for name in ("node-a", "node-b")]
    table: dict[str, object] = {"name": "this-machine", "policy": "FCFS", "workload": {}, "nodes": nodes}
    return check_scenario(table, Path("this-machine"))


def _print_experiments(*, as_json: bool) -> int:
    """List the experiments."""
    found = [{"experiment": one.name, "about": one.about} for one in find_experiments()]
    _say_broken(wide_console(stderr=True))
    if as_json:
        json.dump(found, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return 0
    table = Table(box=None, pad_edge=False)
    table.add_column("experiment")
    table.add_column("about")
    for one in found:
        table.add_row(one["experiment"], one["about"])
    wide_console().print(table)
    return 0


def _rehearse(request: _Request, *, as_json: bool) -> int:
    """Do a dry run of all trials in virtual time; print their numbers and expected duration."""
    order = request.order()
    console = wide_console(stderr=as_json)
    if not request.experiments:
        _say_broken(console)
    expected_s: list[float] = []
    with tempfile.TemporaryDirectory(prefix="dfrs-dry-") as folder:
        trials = run_interruptible(
            do_trials(order, Path(folder), dry_lab, console.print, lambda step: expected_s.append(step.left_s)),
            console,
            virtual_time=True,
        )
    counts = Counter(outcome.experiment for outcome in trials.outcomes)
    if as_json:
        json.dump({"trials": counts, "expected_s": expected_s[0]}, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        table = Table(box=None, pad_edge=False)
        for column in ("experiment", "conditions", "trials"):
            table.add_column(column, justify="left" if column == "experiment" else "right")
        for name, count in sorted(counts.items()):
            table.add_row(name, str(count // order.blocks), str(count))
        console.print(table)
        console.print(f"{len(trials.outcomes)} trials, about {duration(expected_s[0])}")
    return _code(trials)


def _run(request: _Request, *, measure: bool, report: bool, as_json: bool) -> int:
    """Do the remaining trials, fit them, and write and print the calibration."""
    if report:
        _need_report()
    console = wide_console(stderr=as_json)
    trials = _measure(request, as_json=as_json) if measure else read_trials(request.trials)
    calibration = calibrate_from(trials, request.trials)
    write_calibration(request.out, calibration)
    if as_json:
        json.dump(to_json(calibration), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        print_calibration(calibration, console)
    _say(console, f"calibration: {request.out}")
    if report:
        from testbed.study.report.calibration.page import write_calibration_report  # noqa: PLC0415  # needs the extra report

        page = request.out.with_suffix(".html")
        write_calibration_report(trials, calibration, page)
        _say(console, f"page: {page}")
    return _code(trials)


def _measure(request: _Request, *, as_json: bool) -> Trials:
    order = request.order()
    console = wide_console(stderr=as_json)
    if not request.experiments:
        _say_broken(console)
    with Progress("trials", console) as progress:

        def show(step: Step) -> None:
            outcome = step.outcome
            if outcome is not None and outcome.error is not None:
                progress.line(f"failed: {outcome.experiment} {outcome.condition}: {outcome.error}")
            progress.show(step.done, step.total, step.left_s, outcome.experiment if outcome else "")

        try:
            return run_interruptible(do_trials(order, request.trials, live_lab, progress.line, show), console)
        except KeyboardInterrupt:
            progress.line(f"interrupted; the trials so far are in {request.trials}: call again to continue")
            raise


def _say_broken(console: Console) -> None:
    """Report installed experiments that cannot be used; without `--experiments` all others are done."""
    for why in broken_experiments().values():
        _say(console, f"{why}; it is left out")


def _need_report() -> None:
    if find_spec("jinja2") is None or find_spec("matplotlib") is None:
        raise UserError("--report needs more packages: pip install 'dfrs-testbed[report]'")


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _code(trials: Trials) -> int:
    return 1 if trials.failed() else 0
