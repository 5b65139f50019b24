"""A recorded run's decisions, made again by the same policy code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from testbed.control.decisions import read_event, read_view, same_bits
from testbed.errors import UserError
from testbed.measure.rundir import read_journal, read_json
from testbed.policies.catalogue import parse


@dataclass(frozen=True, slots=True)
class Difference:
    """A decision that came out differently; `number` counts from 1, `time_s` is trace time."""

    number: int
    time_s: float
    recorded: Mapping[str, object]
    repeated: Mapping[str, object]


def replay_decisions(run: Path) -> tuple[int, list[Difference]]:
    """Return how many decisions the run's journal holds, and those that differ when they are made again."""
    manifest = read_json(run / "manifest.json")
    period_s = manifest.get("period_s")
    entries = [entry for entry in read_journal(run / "events.jsonl") if entry["kind"] == "decision"]
    if not entries:
        raise UserError(f"{run / 'events.jsonl'}: holds no decision")
    differences = []
    scenario = cast("dict[str, object]", manifest["scenario"])
    policy = parse(str(entries[0]["policy"]), float(cast("float", period_s or scenario["period_s"])))
    for number, entry in enumerate(entries, 1):
        view = read_view(cast("dict[str, object]", entry["view"]))
        decision = policy.decide(view, read_event(cast("dict[str, object]", entry["event"])))
        recorded = cast("dict[str, object]", entry["decision"])
        if not same_bits(decision, recorded):
            repeated = {"task_node": decision.task_node.tolist(), "yield_frac": decision.yield_frac.tolist()}
            differences.append(Difference(number, view.time_s, recorded, repeated))
    return len(entries), differences
