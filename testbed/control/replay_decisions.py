"""Recomputation of a recorded run's decisions by its policy, to check that they are reproduced."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from testbed.errors import UserError
from testbed.measure.rundir import read_json
from testbed.run.decisions import choice, read_event, read_view, same_bits
from testbed.run.events import Choice, Decision
from testbed.run.journal import read_events
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.view import Policy


@dataclass(frozen=True, slots=True)
class Difference:
    """A decision that differs from the recorded one; `number` counts from 1, `time_s` is trace time."""

    number: int
    time_s: float
    recorded: Choice
    repeated: Choice


def replay_decisions(run: Path) -> tuple[int, list[Difference]]:
    """Return the number of decisions in the run's journal, and those that differ when recomputed."""
    manifest = read_json(run / "manifest.json")
    period_s = manifest.get("period_s")
    decisions = (event for event in read_events(run / "events.jsonl") if isinstance(event, Decision))
    policy: Policy | None = None
    number = 0
    differences: list[Difference] = []
    for number, recorded in enumerate(decisions, 1):
        if policy is None:
            scenario = cast("dict[str, object]", manifest["scenario"])
            policy = parse(recorded.policy, float(cast("float", period_s or scenario["period_s"])))
        view = read_view(recorded.view)
        decision = policy.decide(view, read_event(recorded.event))
        if not same_bits(decision, recorded.decision):
            differences.append(Difference(number, view.time_s, recorded.decision, choice(decision)))
    if policy is None:
        raise UserError(f"{run / 'events.jsonl'}: holds no decision")
    return number, differences
