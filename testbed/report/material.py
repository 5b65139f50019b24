"""Everything that a page is made of, loaded from one run directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from testbed.errors import UserError
from testbed.measure.frames import load_points
from testbed.measure.rundir import read_json
from testbed.report.facts import RunFacts, read_facts
from testbed.report.schedule import Schedule
from testbed.report.timeline import Timeline

# Samples of nodes and guests are most of a run's points, and no figure needs them.
_MEASUREMENTS = ("cap", "action", "decision", "superstep", "bus")


@dataclass(frozen=True, slots=True)
class Material:
    """A run: its facts, its schedule, and its points by measurement; `trouble` says what could not be read."""

    facts: RunFacts
    schedule: Schedule
    points: Mapping[str, pl.DataFrame]
    trouble: tuple[str, ...] = ()


def load_material(path: Path) -> Material:
    """Load a run directory, whether the run is complete or not.

    Points that cannot be read are left out, and said so; journal and manifest must be readable (`UserError`).
    """
    if not path.is_dir():
        raise UserError(f"{path}: no such run directory")
    manifest = read_json(path / "manifest.json") if (path / "manifest.json").exists() else {}
    timeline = Timeline.of_manifest(manifest) if {"clocks", "nodes"} <= manifest.keys() else Timeline()
    facts = read_facts(path, timeline.take)
    trouble: list[str] = []
    points: dict[str, pl.DataFrame] = {}
    try:
        points = load_points(path, _MEASUREMENTS)
    except UserError as error:
        trouble.append(f"Figures of points are missing: {error}")
    return Material(facts, timeline.schedule(), points, tuple(trouble))
