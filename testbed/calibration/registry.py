"""The experiments by name: those that are built in, and plug-ins of the group `testbed.experiments`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points

from testbed.calibration.experiment import Experiment
from testbed.errors import UserError, nearest

PLUGIN_GROUP = "testbed.experiments"
_BUILT_IN = (
    "bus", "enactment", "decision", "start", "save_restore", "mpi_save_restore", "transfer", "live_migration",
    "cap_accuracy", "cap_response", "proportionality", "isolation", "virtualisation",
)  # fmt: skip
BUILT_IN = tuple(name.replace("_", "-") for name in _BUILT_IN)


def known() -> tuple[str, ...]:
    """Return the names of all experiments."""
    return (*BUILT_IN, *sorted({point.name for point in entry_points(group=PLUGIN_GROUP)} - set(BUILT_IN)))


def find_experiments(names: Sequence[str] = ()) -> list[Experiment]:
    """Return experiments by name, all of them without names; raises `UserError` for one that nobody knows."""
    return [_find(name) for name in names or known()]


def _find(name: str) -> Experiment:
    found: Experiment
    if name in BUILT_IN:
        found = import_module(f"testbed.calibration.experiments.{name.replace('-', '_')}").EXPERIMENT
        return found
    points = {point.name: point for point in entry_points(group=PLUGIN_GROUP)}
    if name not in points:
        raise UserError(f"experiment {name!r}: expected one of {', '.join(known())}{nearest(name, known())}")
    found = points[name].load()
    return found
