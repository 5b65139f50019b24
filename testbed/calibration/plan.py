"""The order of trials: each block does every condition once, in an order of its own.

Whatever drifts (temperature, caches, a neighbour) then falls on all conditions alike, and a calibration that is ended
early has measured all of them equally often.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from testbed.calibration.experiment import Value
from testbed.calibration.trials import Outcome


@dataclass(frozen=True, slots=True)
class Trial:
    """One condition of one experiment, once more with fresh guests."""

    experiment: str
    block: int
    condition: dict[str, Value]


def plan(conditions: Mapping[str, Sequence[dict[str, Value]]], blocks: int, seed: int) -> list[Trial]:
    """Return all trials in the order in which they are to be done; the same for the same arguments.

    `conditions` are those of each experiment, by its name. Raises ValueError for a condition that is there twice.
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
    """Return what tells a trial (or, without `block`, a condition) from others."""
    return (experiment, block, *sorted(condition.items()))


def left(trials: Iterable[Trial], outcomes: Iterable[Outcome], *, again: bool = True) -> list[Trial]:
    """Return the trials that were not done yet; those that failed are done `again`."""
    done = {outcome.key for outcome in outcomes if outcome.error is None or not again}
    return [trial for trial in trials if key(trial.experiment, trial.condition, trial.block) not in done]
