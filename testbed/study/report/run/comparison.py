"""Comparison of several runs: differences of metrics within and beyond the noise of repeats.

Runs of the same scenario, policy and seed are repeats, and the run is the independent unit. Their range is the noise
band, with which other policies on the same scenario and seed are compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.measure.robust import Interval, t_interval
from testbed.study.report.run.facts import RunFacts

_NOT_THE_WORKLOAD = ("policy", "period_s", "description", "recorders")


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of one scenario, seed and policy."""

    workload: str  # digest of the scenario without its policy, and of the seed
    policy: str
    runs: tuple[RunFacts, ...]

    @property
    def label(self) -> str:
        """The policy, with the number of its runs if there are several."""
        return self.policy if len(self.runs) == 1 else f"{self.policy} ({len(self.runs)} runs)"


@dataclass(frozen=True, slots=True)
class Band:
    """The noise band: range of one metric over repeats, and its mean with the 95 % t-interval over runs."""

    count: int
    low: float
    high: float
    mean: Interval | None

    def holds(self, value: float) -> bool:
        """Return whether a value lies within the range of the repeats."""
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a metric of one policy against the noise band of another policy, the reference."""

    metric: str
    unit: str
    reference: Group
    band: Band
    group: Group
    values: tuple[float, ...]
    words: str
    inside: bool


def workload_digest(run: RunFacts) -> str:
    """Return a digest of everything that comparable runs have in common: scenario without policy, and seed."""
    scenario = run.manifest.get("scenario")
    if not isinstance(scenario, dict):
        return f"{run.scenario}/{run.seed}"
    kept = {key: value for key, value in scenario.items() if key not in _NOT_THE_WORKLOAD}
    text = json.dumps([kept, run.seed], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def same_runs(runs: Sequence[RunFacts]) -> list[RunFacts]:
    """Return the runs that are copies of earlier ones, by their tags; a copy is no repeat."""
    seen: set[str] = set()
    again = []
    for run in runs:
        if run.tag and run.tag in seen:
            again.append(run)
        seen.add(run.tag)
    return again


def groups_of(runs: Sequence[RunFacts]) -> list[Group]:
    """Return the runs grouped by workload and policy, in the given order, without copies."""
    found: dict[tuple[str, str], list[RunFacts]] = {}
    again = same_runs(runs)
    for run in runs:
        if any(run is other for other in again):
            continue
        period = run.manifest.get("period_s")
        found.setdefault((f"{workload_digest(run)}/{period}", run.policy), []).append(run)
    return [Group(key[0].split("/")[0], key[1], tuple(own)) for key, own in found.items()]


def metric_values(group: Group, metric: str) -> tuple[float, ...]:
    """Return the values of a metric in the runs of a group that measured it."""
    values = (run.metrics.get(metric, {}).get("value") for run in group.runs)
    return tuple(float(value) for value in values if value is not None)


def band_of(group: Group, metric: str) -> Band | None:
    """Return the noise band of a metric; None for fewer than two runs that measured it."""
    values = metric_values(group, metric)
    if len(values) < 2:
        return None
    return Band(len(values), min(values), max(values), t_interval(values))


def verdicts(groups: Sequence[Group], metrics: Sequence[str]) -> list[Verdict]:
    """Return the verdicts on all metrics of all groups against the noise bands of other groups of the same workload."""
    found = []
    for reference in groups:
        for metric in metrics:
            band = band_of(reference, metric)
            if band is None:
                continue
            for group in groups:
                values = metric_values(group, metric)
                if group is reference or group.workload != reference.workload or not values:
                    continue
                unit = str(group.runs[0].metrics[metric].get("unit", ""))
                words, inside = _words(band, values)
                found.append(Verdict(metric, unit, reference, band, group, values, words, inside))
    return found


def _words(band: Band, values: Sequence[float]) -> tuple[str, bool]:
    """Return the position of values as text, and False only if all values are beyond the band on the same side."""
    within = sum(band.holds(value) for value in values)
    if within == len(values):
        return "inside the noise band: no difference shown", True
    if within == 0 and max(values) < band.low:
        return f"outside the noise band, below it{_by(band.low - max(values), band.low)}", False
    if within == 0 and min(values) > band.high:
        return f"outside the noise band, above it{_by(min(values) - band.high, band.high)}", False
    if within == 0:
        return "on both sides of the noise band: no run within it", True
    return f"partly inside: {within} of {len(values)} runs within the noise band", True


def _by(distance: float, edge: float) -> str:
    return f" by {distance / abs(edge):.1%} of its edge" if edge else ""
