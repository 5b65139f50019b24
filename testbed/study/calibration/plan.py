"""The plan of trials: a randomised block design in which each block does every condition once, in its own random order.

Drift (of temperature, caches, or other load) then affects all conditions alike. A calibration that is stopped early has
measured all conditions about equally often.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from testbed.errors import UserError, printable
from testbed.study.calibration.checked import checked_values
from testbed.study.calibration.experiment import Experiment, LabFacts
from testbed.study.calibration.trials import Outcome
from testbed.study.calibration.values import Observation, Value


@dataclass(frozen=True, slots=True)
class Trial:
    """One planned trial: a condition of an experiment in one block, with fresh guests."""

    experiment: str
    block: int
    condition: dict[str, Value]


def conditions_of(experiment: Experiment, lab: LabFacts, *, quick: bool) -> list[Observation] | str:
    """Return the checked conditions of an experiment on a lab, or the reason (or error) why there are none."""
    try:
        if reason := experiment.why_not(lab):
            return reason
        return _checked(experiment, lab, quick=quick)
    except UserError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001  # no error of a plug-in may stop the other experiments
        return printable(f"its conditions failed: {type(error).__name__}: {error}")


def _checked(experiment: Experiment, lab: LabFacts, *, quick: bool) -> list[Observation]:
    of = f"experiment {experiment.name}"
    found = [checked_values(one, f"{of}: condition") for one in experiment.conditions(lab, quick=quick)]
    if not found:
        raise UserError(f"{of}: no condition: expected one at least, an empty one if nothing is varied")
    for place, condition in enumerate(found):
        if condition in found[:place]:
            raise UserError(f"{of}: condition {condition}: expected each condition once")
        expected_s = experiment.expected_s(condition, lab)
        if not (isinstance(expected_s, int | float) and isfinite(expected_s) and expected_s >= 0.0):
            raise UserError(f"{of}: expected_s {expected_s!r} of condition {condition}: expected seconds, at least 0")
    return found


def plan(conditions: Mapping[str, Sequence[dict[str, Value]]], blocks: int, seed: int) -> list[Trial]:
    """Return all trials in the order in which they are to be done, which depends on the arguments only.

    `conditions` maps the name of each experiment to its conditions. Raises ValueError for a duplicate condition.
    """
    pairs = [(name, condition) for name, some in conditions.items() for condition in some]
    for name, some in conditions.items():
        if len({key(name, condition) for condition in some}) != len(some):
            raise ValueError(f"experiment {name}: a condition is there twice")
    trials: list[Trial] = []
    for block in range(blocks):
        order = list(pairs)
        random.Random(f"{seed}/{block}").shuffle(order)  # noqa: S311  # an order of trials is no secret
        trials += [Trial(name, block, condition) for name, condition in order]
    return trials


def key(experiment: str, condition: Mapping[str, Value], block: int | None = None) -> tuple[object, ...]:
    """Return the identity of a trial (or, without `block`, of a condition)."""
    return (experiment, block, *sorted(condition.items()))


def left(trials: Iterable[Trial], outcomes: Iterable[Outcome], *, again: bool = True) -> list[Trial]:
    """Return the trials that were not done yet; with `again`, failed trials count as not done."""
    done = {outcome.key for outcome in outcomes if outcome.error is None or not again}
    return [trial for trial in trials if key(trial.experiment, trial.condition, trial.block) not in done]
