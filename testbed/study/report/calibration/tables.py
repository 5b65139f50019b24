"""The tables of a calibration's page: quantities, assumptions, outliers, failed trials, and provenance."""

# ruff: noqa: RUF001 - signs of mathematics and dashes, for people to read

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from statistics import median
from typing import Any

from testbed.study.calibration import tables
from testbed.study.calibration.model import Calibration, condition_words
from testbed.study.calibration.trials import Trials
from testbed.study.report.page.table import Table
from testbed.study.report.page.tables import node_cells


def quantities_table(calibration: Calibration) -> Table:
    """Return the table of all quantities: value, interval, unit, n, model, residual, outliers."""
    told = tables.quantity_table(calibration)
    caption = (
        f"{len(told.rows)} quantities with their 95 % intervals by bootstrap over whole trials (Student's t for few "
        "trials); n: number of trials; residual: median absolute residual relative to the model; outliers: their "
        "number, as they were kept in the fits."
    )
    return Table("quantities", "Quantities", caption, told.heads, told.rows, texts=2)


def assumptions_table(calibration: Calibration) -> Table:
    """Return the table of verdicts on the assumptions of the papers and of plug-in experiments."""
    found = tables.assumption_table(calibration)
    rows = tuple((row[0].replace("_", " "), *row[1:]) for row in found.rows)
    of_papers = sum(one.source.startswith("[RR") for one in calibration.assumptions.values())
    caption = (
        "Verdicts use the 95 % intervals of all measured conditions. Held: all intervals are within 2 % of the assumed "
        "value. Within: all are within 10 %. Broken: at least one is wholly outside 10 %. Undecided: more trials are "
        f"needed. {of_papers} of these {len(rows)} assumptions are from [RR] (Casanova, Stillwell and Vivien, RR-7659, "
        "2011)."
    )
    return Table("assumptions", "Assumptions and verdicts", caption, found.heads, rows, texts=len(found.heads))


def outliers_table(calibration: Calibration) -> Table | None:
    """Return the table of outliers, None if there are none."""
    told = tables.outlier_table(calibration)
    if told is None:
        return None
    caption = (
        "Observations further than 3.5 robust standard deviations from the model. All were kept, because the fits use "
        f"robust estimators, which a few outliers hardly change. n = {len(told.rows)}."
    )
    return Table("outliers", "Outliers", caption, told.heads, told.rows, texts=2)


def failed_table(trials: Trials) -> Table | None:
    """Return the table of failed trials with their reasons, also of those that succeeded later; None without any."""
    failed = [outcome for outcome in trials.outcomes if outcome.error is not None]
    if not failed:
        return None
    rows = tuple(
        (
            str(one.trial), one.experiment, str(one.block), condition_words(one.condition), f"{one.elapsed_s:.1f}",
            str(one.error),
        )
        for one in failed
    )  # fmt: skip
    caption = f"Failed trials have no observations. n = {len(failed)} of {len(trials.outcomes)} trials."
    heads = ("trial", "experiment", "block", "condition", "after s", "reason")
    return Table("failed", "Failed trials", caption, heads, rows, texts=len(heads))


def experiments_table(trials: Trials) -> Table:
    """Return the table of experiments: numbers of trials, and reasons why experiments were left out."""
    skipped = _table(trials.begin.get("skipped"))
    wanted = [str(name) for name in trials.begin.get("experiments") or ()]
    names = list(dict.fromkeys([*wanted, *skipped, *(outcome.experiment for outcome in trials.outcomes)]))
    rows = []
    for name in names:
        own = [outcome for outcome in trials.outcomes if outcome.experiment == name]
        done = [outcome for outcome in own if outcome.error is None]
        conditions = Counter(tuple(sorted(outcome.condition.items())) for outcome in done)
        least = min(conditions.values(), default=0)
        rows.append(
            (
                name, str(skipped.get(name, "" if own else "no trial was done")), str(len(conditions)), str(least),
                str(len(done)), str(len(own) - len(done)), f"{sum(outcome.elapsed_s for outcome in own):,.0f}",
            )
        )  # fmt: skip
    caption = (
        "A trial measures one condition once, with fresh guests; conditions are in random order within each block. "
        f"n = {len(trials.outcomes)} trials."
    )
    heads = ("experiment", "left out because", "conditions", "least repeats", "trials", "failed", "seconds")
    return Table("experiments", "Experiments", caption, heads, tuple(rows), texts=2)


def nodes_table(trials: Trials) -> Table | None:
    """Return the table of the nodes' facts, None if the trials have none."""
    nodes = _table(trials.begin.get("nodes"))
    if not nodes:
        return None
    rows = []
    for name, told in nodes.items():
        facts = _table(told)
        kind, size = node_cells(facts)
        versions = ", ".join(f"{key} {value}" for key, value in _table(facts.get("versions")).items())
        stores = ", ".join(str(store) for store in facts.get("image_stores", ()))
        free = f"{facts.get('image_free_mib', 0):,}"
        rows.append((str(name), *kind, versions or "–", stores or "–", *size, free))
    heads = (
        "node", "driver", "accelerator", "kernel", "processor", "versions", "image stores", "cores", "memory MiB",
        "free MiB",
    )  # fmt: skip
    caption = "Facts that the agents announced; cores: the node's part of its machine's cores; free MiB: for images."
    return Table("nodes", "Nodes", caption, heads, tuple(rows), texts=7)


def provenance(trials: Trials, calibration: Calibration) -> list[tuple[str, str]]:
    """Return the provenance of the calibration as pairs of name and value."""
    begin, about = trials.begin, calibration.about
    foreign = [one.foreign_cpu_frac for one in trials.outcomes if one.foreign_cpu_frac is not None]
    load = (
        f"median {100 * median(foreign):.1f} %, at most {100 * max(foreign):.1f} % of the machine during a trial"
        if foreign
        else "unknown"
    )
    skipped = _table(begin.get("skipped"))
    found = [
        ("lab", str(begin.get("lab", "unknown"))),
        ("scenario", str(begin.get("scenario", "unknown"))),
        ("began", about.created_utc or "unknown"),
        ("trials", f"{about.trials} done, {len(calibration.failed)} failed; {about.trials_file} {about.trials_digest}"),
        ("least repeats of a condition", str(about.repeats)),
        ("kind", "quick" if begin.get("quick") else "full"),
        ("seed", str(about.seed)),
        ("foreign CPU load", load),
        ("migration by", str(begin.get("migration", "unknown"))),
        ("controller", ", ".join(f"{k} {v}" for k, v in _table(begin.get("controller")).items()) or "unknown"),
        ("testbed", str(begin.get("testbed", "unknown"))),
        ("left out", "; ".join(f"{name}: {why}" for name, why in skipped.items()) or "nothing"),
    ]
    return found + [("note", note) for note in about.notes]


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
