"""The registry of experiments: entry points of the group `testbed.experiments`, including the built-in experiments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points

from testbed.errors import UserError, nearest
from testbed.study.calibration.experiment import Experiment

GROUP = "testbed.experiments"
_OWN = "testbed."  # modules of this distribution; other distributions cannot replace their experiments
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def find_experiments(names: Sequence[str] = ()) -> list[Experiment]:
    """Return experiments by name, in their order; raises `UserError` for one that is missing or does not load.

    Without names, return all experiments that load; `broken_experiments` returns the others.
    """
    points = _points()
    if not names:
        all_of_them = [found for point in points.values() if isinstance(found := _load(point), Experiment)]
        if not all_of_them:
            raise UserError(f"no entry point of the group {GROUP}: expected those of this package; install it again")
        return _in_order(all_of_them)
    chosen: list[Experiment] = []
    for name in dict.fromkeys(names):
        if name not in points:
            raise UserError(f"experiment {name!r}: expected one of {', '.join(known())}{nearest(name, points)}")
        one = _load(points[name])
        if isinstance(one, UserError):
            raise one
        chosen.append(one)
    return _in_order(chosen)


def broken_experiments() -> dict[str, str]:
    """Return the errors of installed experiments that cannot be used, one line per experiment, by name."""
    broken = {name: str(error) for name, point in _points().items() if isinstance(error := _load(point), UserError)}
    for point in entry_points(group=GROUP):
        if point.value != _points()[point.name].value:
            broken.setdefault(point.name, f"{_of(point)}: the name is taken by {_points()[point.name].value}")
    return broken


def known() -> tuple[str, ...]:
    """Return the names of all experiments that can be used, in their order."""
    return tuple(experiment.name for experiment in find_experiments())


def _points() -> dict[str, EntryPoint]:
    """Return one entry point per name; entry points of this distribution take precedence."""
    points = sorted(entry_points(group=GROUP), key=lambda point: (point.value.startswith(_OWN), point.value))
    return {point.name: point for point in points}


def _load(point: EntryPoint) -> Experiment | UserError:
    try:
        kind = point.load()
        if not (isinstance(kind, type) and issubclass(kind, Experiment)):
            return UserError(f"{_of(point)}: expected a class derived from Experiment, found {kind!r}")
        experiment = kind()
        if experiment.name != point.name or not _NAME.fullmatch(point.name):
            expected = "the name of its entry point, of small letters, digits and '-'"
            return UserError(f"{_of(point)}: name {experiment.name!r}: expected {expected}")
        if not (isinstance(experiment.about, str) and isinstance(experiment.section, str)):
            return UserError(f"{_of(point)}: expected texts as about and section")
        if not isinstance(experiment.order, int):
            return UserError(f"{_of(point)}: order {experiment.order!r}: expected a whole number")
    except Exception as error:  # noqa: BLE001  # no error of a plug-in may stop the other experiments
        return UserError(f"{_of(point)}: {type(error).__name__}: {error}")
    return experiment


def _of(point: EntryPoint) -> str:
    return f"experiment {point.name!r} ({point.value})"


def _in_order(experiments: list[Experiment]) -> list[Experiment]:
    return sorted(experiments, key=lambda one: (one.order, one.name))
