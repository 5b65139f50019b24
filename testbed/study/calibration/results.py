"""The checked results of experiments: a failure in the evaluation of one experiment loses only its own results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from testbed.errors import UserError, printable, shown
from testbed.study.calibration.checked import checked_assumptions, checked_outliers, checked_quantities
from testbed.study.calibration.experiment import Experiment
from testbed.study.calibration.model import Assumption
from testbed.study.calibration.quantities import Quantities
from testbed.study.calibration.registry import broken_experiments
from testbed.study.calibration.trials import Outcome, Trials

T = TypeVar("T")


@dataclass(slots=True)
class Results:
    """Quantities of each experiment by its name, verdicts by the names of assumptions, and a line for each failure."""

    quantities: dict[str, Quantities] = field(default_factory=dict)
    assumptions: dict[str, Assumption] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def results_of(trials: Trials, experiments: Sequence[Experiment]) -> Results:
    """Return the results of the experiments from the trials that succeeded, in the order of the experiments."""
    results = Results(notes=_without_experiment(trials, experiments))
    quantity_of: dict[str, str] = {}
    assumption_of: dict[str, str] = {}
    for experiment in experiments:
        name, own = experiment.name, trials.of(experiment.name)
        found = guarded(name, "quantities", partial(_quantities, experiment, own, quantity_of), results.notes)
        if found is None:
            continue
        results.quantities[name] = found
        quantity_of |= {quantity.name: name for quantity in found}
        judge = partial(_assumptions, experiment, found, assumption_of)
        verdicts = guarded(name, "assumptions", judge, results.notes)
        results.assumptions |= verdicts or {}
        assumption_of |= dict.fromkeys(verdicts or {}, name)
    return results


def guarded(experiment: str, what: str, made: Callable[[], T], notes: list[str]) -> T | None:
    """Return the result of `made()`; if it raises, add a line to `notes` and return None."""
    try:
        return made()
    except UserError as error:
        words = str(error)
    except Exception as error:  # noqa: BLE001  # no error of a plug-in may lose results of other experiments
        words = f"experiment {experiment}: {type(error).__name__}: {error}"
    notes.append(printable(f"{words}; its {what} are left out"))
    return None


def _quantities(experiment: Experiment, trials: Sequence[Outcome], taken: dict[str, str]) -> Quantities:
    found = experiment.quantities(trials)
    if not isinstance(found, Quantities):
        raise UserError(f"experiment {experiment.name}: {shown(found)}: expected Quantities")
    checked_outliers(experiment.name, found.outliers)
    return Quantities(trials, checked_quantities(experiment.name, found, taken), found.outliers, found.fits)


def _assumptions(experiment: Experiment, found: Quantities, taken: dict[str, str]) -> dict[str, Assumption]:
    return checked_assumptions(experiment.name, experiment.assumptions(found), taken)


def _without_experiment(trials: Trials, experiments: Sequence[Experiment]) -> list[str]:
    """Return a line for each experiment that has trials but is not installed here."""
    known = {experiment.name for experiment in experiments}
    strange = Counter(outcome.experiment for outcome in trials.outcomes if outcome.experiment not in known)
    broken = broken_experiments() if strange else {}
    return [
        f"{broken.get(name, f'experiment {name}: not installed here')}; its {count} trials give no quantities"
        for name, count in strange.items()
    ]
