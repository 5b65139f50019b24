"""A comparison's results as plain data for JSON: fractions of 1, and trace seconds unless the name says otherwise."""

from __future__ import annotations

from dataclasses import asdict
from math import isfinite
from typing import Any

from testbed.study.compare.alignment import Alignment
from testbed.study.compare.pairs import RunPair
from testbed.study.compare.quarantine import Health
from testbed.study.compare.statistics import Order
from testbed.study.compare.study import Group, Judged, Study


def document(found: Study) -> dict[str, Any]:
    """Return the complete results of a comparison."""
    return {
        "verdict": found.verdict,
        "overheads": found.overheads,
        "warnings": list(found.warnings),
        "quarantine": {run.facts.name: _health(found.health[str(run.facts.path)]) for run in found.runs},
        "left_out": [run.facts.name for run in found.left_out],
        "copies": [run.facts.name for run in found.again],
        "cases_without_a_run": list(found.absent),
        "groups": [_group(group) for group in found.groups],
        "orders": {conditions: [_order(each) for each in orders] for conditions, orders in found.orders.items()},
    }


def _health(health: Health) -> dict[str, Any]:
    return {
        "disturbed": bool(health.reasons),
        "findings": [
            {
                "name": each.name,
                "what": each.what,
                "value": each.value,
                "limit": each.limit if isfinite(each.limit) else None,
                "unit": each.unit,
                "disturbed": each.disturbed,
                **({"not_recorded": each.why} if each.value is None else {}),
            }
            for each in health.findings
        ],
    }  # fmt: skip


def _group(group: Group) -> dict[str, Any]:
    noise = group.spread
    return {
        "conditions": group.conditions,
        "policy": group.policy,
        "runs": [pair.run.facts.name for pair in group.pairs],
        "work": "cpu-time" if group.of_cpu_time else "units",
        "corrected_for_core_speed": [pair.run.facts.name for pair in group.pairs if pair.speeds is not None],
        "verdict": group.verdict,
        "repeats_same_placement_frac": group.repeats_same_frac,
        "noise": None
        if noise is None
        else {
            "turnaround_median_frac": noise.median,
            "turnaround_median_interval": list(noise.interval),
            "turnaround_max_frac": noise.largest,
            "worst_job": group.pairs[0].jobs[noise.worst_job].job,
            "pairs": noise.pairs,
        },
        "statistics": {each.name: _judged(each) for each in group.judged},
        "sources": [
            {
                "job": job,
                "live": asdict(live),
                "simulated": asdict(simulated),
                "difference": {"turnaround_s": (live - simulated).turnaround_s, **asdict(live - simulated)},
            }
            for job, (live, simulated) in group.sources.items()
        ],
        "by_run": [_pair(pair) for pair in group.pairs],
    }


def _judged(judged: Judged) -> dict[str, Any]:
    band = judged.band
    return {
        "verdict": judged.verdict,
        "errors_frac": list(judged.errors),
        "raw_errors_frac": list(judged.raw_errors),
        "raw_mean_error_frac": judged.raw_mean,
        "mean_error_frac": judged.mean,
        "bounds_frac": [judged.shown.low, judged.shown.high] if judged.shown.runs > 1 else None,
        "deviation_frac": judged.shown.deviation,
        "runs_needed": judged.shown.needed,
        "band": None
        if band is None
        else {"high_frac": band.high, "values_frac": list(band.values), "mean_interval": list(band.interval)},
        "goal_frac": judged.goal,
    }


def _pair(pair: RunPair) -> dict[str, Any]:
    return {
        "run": pair.run.facts.name,
        "schedule_agreement_frac": pair.agreement_frac,
        "decisions": _alignment(pair.alignment),
        "one_step": None
        if pair.one_step is None
        else {
            "decisions": pair.one_step.decisions,
            "same_placement_frac": pair.one_step.same_frac,
            "progress_error_median_s": pair.one_step.progress_error_s,
        },
        "jobs": [asdict(job) for job in pair.jobs],
    }


def _alignment(alignment: Alignment) -> dict[str, Any]:
    first = alignment.first
    return {
        "same_placement_frac": alignment.same_frac,
        "triggers_in_both": len(alignment.both),
        "triggers_live_only": list(map(str, alignment.live_only)),
        "triggers_simulated_only": list(map(str, alignment.simulated_only)),
        "running_jaccard_mean": alignment.jaccard_mean,
        "running_jaccard_over_time": alignment.jaccard_over_time,
        "first_divergence": None if first is None else {**asdict(first), "trigger": str(first.trigger)},
        "decisions": [{**asdict(each), "trigger": str(each.trigger)} for each in alignment.both],
    }


def _order(order: Order) -> dict[str, Any]:
    return {
        "metric": order.metric,
        "live": dict(order.live),
        "simulated": dict(order.simulated),
        "kendall_tau": order.tau if isfinite(order.tau) else None,
        "same_order": order.same,
        "pairs": [
            {
                **pair._asdict(),
                "noise_frac": pair.noise_frac if isfinite(pair.noise_frac) else None,
                "told_apart": pair.told_apart,
                "agrees": pair.agrees,
            }
            for pair in order.pairs
        ],
    }
