"""Whether an overhead model was measured on nodes like those of the runs that it is to predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.scheduling.simulation.overheads_parser import split_file
from testbed.study.compare.live import LiveRun
from testbed.toml_files import read_toml

_FACTS = ("cpu_model", "machine_cores", "driver", "cpus", "memory_mib")


def unlike(model: str | None, runs: Sequence[LiveRun]) -> tuple[str, ...]:
    """Return a sentence for each fact in which the nodes of a model's calibration differ from those of some run.

    `model` is the text that names the model; models without a calibration's facts have no differences.
    """
    file, _ = split_file(model or "")
    if not file:
        return ()
    table = read_toml(Path(file), "a TOML file with a table of overheads").get("provenance", {})
    measured = _values(table.get("nodes", {}) if isinstance(table, Mapping) else {})
    found: dict[str, str] = {}
    for run in runs:
        for fact, values in _values(run.facts.manifest.get("nodes", {})).items():
            there = measured.get(fact)
            if there and values and not values <= there:
                one, other = (", ".join(sorted(map(str, each))) for each in (there, values))
                found.setdefault(fact, f"{file} was measured on nodes with {fact} {one}: {run.facts.name} has {other}")
    return tuple(found.values())


def _values(nodes: object) -> dict[str, set[Any]]:
    """Return the different values of each fact among nodes."""
    facts = [each for each in nodes.values() if isinstance(each, Mapping)] if isinstance(nodes, Mapping) else []
    return {fact: {each[fact] for each in facts if isinstance(each.get(fact), str | int | float)} for fact in _FACTS}
