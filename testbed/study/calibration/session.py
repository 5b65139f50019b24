"""The session of a calibration: plan and trials on live nodes; each trial is journalled when it ends."""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec

from testbed import __version__
from testbed.errors import RunError, TestbedError, UserError, printable
from testbed.lab.bring_up import BringUp
from testbed.lab.lab import Lab
from testbed.lab.load import foreign_frac
from testbed.lab.opening import open_lab
from testbed.scenario.schema import Scenario
from testbed.study.calibration.checked import checked_observations
from testbed.study.calibration.experiment import Experiment, LabFacts
from testbed.study.calibration.plan import Trial, conditions_of, key, left, plan
from testbed.study.calibration.trials import FILE, Outcome, TrialJournal, Trials, read_trials

BLOCKS = 10
QUICK_BLOCKS = 3
MOST_FAILURES = 3  # after as many consecutive failures the lab counts as broken


@dataclass(frozen=True, slots=True)
class Step:
    """The progress of a session: the last outcome (None at first), numbers of done and of all trials, seconds left."""

    outcome: Outcome | None
    done: int
    total: int
    left_s: float


@dataclass(frozen=True, slots=True)
class Order:
    """The settings of a calibration."""

    scenario: Scenario
    experiments: tuple[Experiment, ...]
    blocks: int
    seed: int
    quick: bool
    nodes: tuple[str, ...] = ()


async def calibrate(
    order: Order, place: Path, bring_up: BringUp, tell: Callable[[str], None], show: Callable[[Step], None]
) -> Trials:
    """Do all trials that the journal in `place` does not have yet; return all trials of the journal.

    `tell` is called with messages for the user, `show` with each step. A failed trial is journalled and left out; three
    consecutive failures end the calibration. On cancellation all guests are destroyed, and the completed trials are
    kept. Raises `UserError` if the journal in `place` is of another lab, seed or machine.
    """
    before = _make_ready(place)
    async with open_lab(order.scenario, nodes=order.nodes, folder=place, bring_up=bring_up) as lab:
        facts = LabFacts(order.scenario, lab.facts)
        conditions = {}
        skipped = {}
        for experiment in order.experiments:
            possible = conditions_of(experiment, facts, quick=order.quick)
            if isinstance(possible, str):
                skipped[experiment.name] = possible
                tell(f"{experiment.name}: not on this lab: {possible}")
            else:
                conditions[experiment.name] = possible
        trials = plan(conditions, order.blocks, order.seed)
        with TrialJournal(place / FILE) as journal:
            begin = _begin(order, lab, skipped)
            if before is None:
                journal.begin(begin)
            else:
                _must_be_same(before, begin, place / FILE)
            todo = left(trials, before.outcomes if before else ())
            if len(todo) < len(trials):
                tell(f"{len(trials) - len(todo)} of {len(trials)} trials were done before; going on")
            await _do(order, lab, facts, todo, len(trials), journal, show)
    return read_trials(place / FILE)


def _make_ready(place: Path) -> Trials | None:
    """Create the folder, rename the logs of an earlier session, and return the trials that the folder has."""
    place.mkdir(parents=True, exist_ok=True)
    agents = place / "agents"
    if agents.exists():
        agents.rename(place / f"agents.{time.time_ns()}")
    return read_trials(place / FILE) if (place / FILE).exists() else None


async def _do(
    order: Order, lab: Lab, facts: LabFacts, todo: Sequence[Trial], total: int, journal: TrialJournal,
    show: Callable[[Step], None],
) -> None:  # fmt: skip
    experiments = {experiment.name: experiment for experiment in order.experiments}
    eta = _Eta({key(t.experiment, t.condition): experiments[t.experiment].expected_s(t.condition, facts) for t in todo})
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    failures = 0
    show(Step(None, total - len(todo), total, eta.left_s(todo)))
    for place, trial in enumerate(todo):
        try:
            lab.check()
        except RunError as away:
            raise _ended(str(away), journal) from away
        outcome = await _one(experiments[trial.experiment], trial, journal.next_trial, lab, begin_s)
        journal.add(outcome)
        eta.learn(trial, outcome.elapsed_s)
        failures = failures + 1 if outcome.error else 0
        show(Step(outcome, total - len(todo) + place + 1, total, eta.left_s(todo[place + 1 :])))
        if failures == MOST_FAILURES:
            raise _ended(f"{failures} trials failed one after the other, the last: {outcome.error}", journal)


def _ended(why: str, journal: TrialJournal) -> RunError:
    return RunError(f"{why}; the trials so far are in {journal.path}: call again to go on")


async def _one(experiment: Experiment, trial: Trial, number: int, lab: Lab, begin_s: float) -> Outcome:
    loop = asyncio.get_running_loop()
    from_s = loop.time()
    load = lab.load.mark()
    observations: tuple[dict[str, float | int | str], ...] = ()
    error: str | None = None
    try:
        observations = checked_observations(experiment.name, await experiment.trial(lab, trial.condition))
    except TestbedError as failure:
        error = str(failure)
    except Exception as failure:  # noqa: BLE001  # no error of a plug-in may stop the other trials
        error = printable(f"{type(failure).__name__}: {failure}")
    return Outcome(
        trial=number,
        experiment=trial.experiment,
        block=trial.block,
        condition=trial.condition,
        observations=observations,
        elapsed_s=round(loop.time() - from_s, 6),
        t_s=round(from_s - begin_s, 6),
        foreign_cpu_frac=foreign_frac(load, lab.load.mark()),
        error=error,
    )


class _Eta:
    """Estimates of the trials' durations: the median of earlier trials of the condition, else the expected duration."""

    def __init__(self, expected_s: dict[tuple[object, ...], float]) -> None:
        self._expected_s = expected_s
        self._seen_s: dict[tuple[object, ...], list[float]] = {}

    def learn(self, trial: Trial, elapsed_s: float) -> None:
        self._seen_s.setdefault(key(trial.experiment, trial.condition), []).append(elapsed_s)

    def left_s(self, trials: Sequence[Trial]) -> float:
        total_s = 0.0
        for trial in trials:
            kind = key(trial.experiment, trial.condition)
            seen = self._seen_s.get(kind)
            total_s += median(seen) if seen else self._expected_s[kind]
        return total_s


def _begin(order: Order, lab: Lab, skipped: dict[str, str]) -> dict[str, object]:
    return {
        "created_unix_s": round(time.time(), 3),
        "lab": order.scenario.lab,
        "scenario": order.scenario.name,
        "seed": order.seed,
        "quick": order.quick,
        "experiments": [experiment.name for experiment in order.experiments],
        "skipped": skipped,
        "testbed": __version__,
        "controller": {"kernel": platform.release(), "cores": os.cpu_count(), "python": platform.python_version()},
        "nodes": {node.name: msgspec.to_builtins(node.facts) for node in lab.fleet.nodes},
        "migration": order.scenario.migration.mechanism,
        "time_scale": order.scenario.time_scale,
        "core_units_per_s": lab.core_units_per_s,
    }


_SAME_FACTS = ("cpus", "memory_mib", "cpu_model", "kernel", "driver", "versions")


def _must_be_same(before: Trials, now: dict[str, object], path: Path) -> None:
    """Raise `UserError` if the session differs from the journal's: trials of other machines or seeds are no repeats."""
    was = before.begin
    for name in ("lab", "seed", "quick"):
        if was.get(name) != now[name]:
            raise UserError(
                f"{path}: its trials have {name} = {was.get(name)!r}, these would have {now[name]!r}: "
                "expected the same, or another --out"
            )
    nodes = now["nodes"]
    if not isinstance(nodes, dict) or set(was.get("nodes", {})) != set(nodes):
        raise UserError(f"{path}: its trials are of nodes {', '.join(was.get('nodes', {}))}: expected the same nodes")
    for node, facts in nodes.items():
        for name in _SAME_FACTS:
            found = was["nodes"][node].get(name)
            if found != facts[name]:
                raise UserError(
                    f"{path}: node {node} had {name} = {found!r}, now {facts[name]!r}: these are no repeats; "
                    "use another --out"
                )
