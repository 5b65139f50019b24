"""Ranks of policies under each overhead model, agreement of rankings, and gains of the best over a baseline.

All figures are paired: only traces with results of every policy under every model count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.scheduling.campaign.model import RankingSpec
from testbed.scheduling.campaign.plan import Setting
from testbed.scheduling.campaign.results import Row
from testbed.scheduling.campaign.summary import chosen_rows, label_rows
from testbed.scheduling.metrics import Spread, kendall_tau, spread
from testbed.scheduling.simulation.named import named
from testbed.scheduling.simulation.overheads import Overheads


@dataclass(frozen=True, slots=True)
class Best:
    """The policy of dynamic fractional resource scheduling with the least mean under one model.

    `gain` is the spread over traces of the baseline's value divided by this policy's; `lowest` is the least ratio.
    """

    policy: str
    gain: Spread
    lowest: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """P policies under M overhead models on `traces` traces; P and M are 0 where no trace is complete."""

    models: list[str]
    about: list[str]  # (M,) the model in a few words
    policies: list[str]  # in the order of their ranks under the first model
    cells: list[list[Spread]]  # (P, M) of the measure
    ranks: list[list[float]]  # (P, M) 1 is the best; ties share the mean of their ranks
    tau: list[list[float | None]]  # (M, M) Kendall's tau-b between rankings, None where all policies tie
    best: list[Best | None]  # (M,) None without such a policy
    traces: int


def rank(settings: Sequence[Setting], spec: RankingSpec, rows: Sequence[Row]) -> Ranking:
    """Rank the policies of a campaign under each overhead model; a policy with several periods counts as several."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    kinds: dict[str, str] = {}
    for row, label in label_rows(chosen_rows(spec, rows), ("policy", "period_s")):
        value = row[spec.measure]
        kinds[label] = str(row["policy"])
        of_trace = found.setdefault((label, str(row["overheads"])), {})
        if value is not None:
            of_trace[str(row["trace"])] = float(value)
    overheads = {setting.overheads.name: setting.overheads for setting in settings}
    models = [name for name in overheads if any(model == name for _, model in found)]
    traces = sorted(set.intersection(*map(set, found.values()))) if len(found) == len(kinds) * len(models) > 0 else []
    if not traces:
        return Ranking([], [], [], [], [], [], [], 0)
    cells = {key: spread([values[trace] for trace in traces]) for key, values in found.items()}
    ranks = {
        model: dict(zip(kinds, ranks_of([cells[kind, model].mean for kind in kinds]), strict=True)) for model in models
    }
    policies = sorted(kinds, key=lambda kind: ranks[models[0]][kind])
    fractional = [kind for kind in policies if named(kinds[kind]).is_fractional]
    baseline = next((kind for kind in policies if kinds[kind] == spec.baseline), None)

    def best_of(model: str) -> Best | None:
        if not fractional or baseline is None:
            return None
        winner = min(fractional, key=lambda kind: cells[kind, model].mean)
        gains = [found[baseline, model][trace] / found[winner, model][trace] for trace in traces]
        return Best(winner, spread(gains), min(gains))

    return Ranking(
        models=models,
        about=[describe(overheads[model]) for model in models],
        policies=policies,
        cells=[[cells[kind, model] for model in models] for kind in policies],
        ranks=[[ranks[model][kind] for model in models] for kind in policies],
        tau=[
            [
                kendall_tau([ranks[one][kind] for kind in kinds], [ranks[other][kind] for kind in kinds])
                for other in models
            ]
            for one in models
        ],
        best=[best_of(model) for model in models],
        traces=len(traces),
    )


def describe(model: Overheads) -> str:
    """Return a short description of a model: its seconds, a constant or a range, and its other effects."""
    low_s = float(min(model.resume_s.min(), model.migration_s.min()))
    high_s = float(max(model.resume_s.max(), model.migration_s.max()))
    beyond = model.table(1.0).beyond
    parts = [f"{low_s:.4g} s" if low_s == high_s else f"{low_s:.4g} to {high_s:.4g} s"]
    parts += ["starts cost"] if beyond.starts else []
    parts += ["places are held while they are saved"] if bool((beyond.save_s > 0.0).any()) else []
    parts += ["concurrency by node"] if beyond.per_node else []
    parts += ["measured progress"] if beyond.bends else []
    return ", ".join(parts)


def ranks_of(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, 1 for the least; ties share the mean of their ranks."""
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values
    ]
