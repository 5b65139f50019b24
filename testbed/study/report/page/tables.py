"""The tables of a page, with cells as text and numbers aligned to the right."""

# ruff: noqa: RUF001 - signs of mathematics and dashes, for people to read

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from testbed.study.report.page.style import Headline
from testbed.study.report.page.table import Table
from testbed.study.report.run.comparison import Group, Verdict, band_of
from testbed.study.report.run.facts import RunFacts
from testbed.study.report.terminal.text import BLIND, METRICS, job_cells, penalty_cells

if TYPE_CHECKING:
    from testbed.study.report.run.quantiles import Quantiles

_HEADLINES = (
    ("max_stretch", "maximum bounded stretch"),
    ("degradation", "degradation from bound"),
    ("mean_stretch", "mean bounded stretch"),
    ("preemptions", "preemptions"),
    ("migrations", "migrations"),
    ("penalty_mean", "rescheduling penalty, mean"),
    ("save_gb_per_s", "rate while saving"),
    ("cap_error_mean", "cap error, mean absolute (percentage points of a core)"),
    ("decide_mean", "decision time, mean"),
    ("makespan_wall", "makespan"),
)
_SHORT_UNITS = {"percentage points of a core": "pp", "GB/wall s": "GB/s", "wall s": "s", "1": "", "count": ""}
_TITLES = dict(METRICS)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def headlines(run: RunFacts) -> list[Headline]:
    """Return the main numbers of a run for the top of its page, without those that were not measured."""
    found = [Headline(f"{run.done} / {len(run.jobs)}", "", "jobs done")]
    for name, label in _HEADLINES:
        metric = run.metrics.get(name, {})
        value, unit = metric.get("value"), str(metric.get("unit", ""))
        if value is None:
            continue
        if unit == "s" and abs(value) < 1:
            value, unit = value * 1000, "ms"
        digits = 0 if unit == "count" else 2 if abs(value) < 100 else 1
        found.append(Headline(_number(value, digits), _SHORT_UNITS.get(unit, unit), label))
    return found


def jobs_table(run: RunFacts) -> Table:
    """Return the table of jobs, one row per job."""
    cells = [(job.state, *job_cells(job, _number)) for job in run.jobs]
    rows = tuple((job_id, state, *rest) for state, job_id, *rest in cells)
    caption = (
        "CPU need and memory requirement per task, as fractions of a node. Submission, start, end, run time on "
        f"dedicated nodes and virtual time in trace seconds; bounded stretch with τ = {run.tau_s:g} s; penalty: sum "
        "over the job's reschedulings in wall seconds; moved: bytes of all operations in MiB. "
        f"n = {len(rows)} jobs."
    )
    columns = (
        "job", "state", "tasks", "CPU need", "memory", "submit", "start", "end", "run time", "virtual time", "stretch",
        "preemptions", "migrations", "penalty s", "moved MiB",
    )  # fmt: skip
    return Table("jobs", "Jobs", caption, columns, rows, texts=2)


def penalties_table(run: RunFacts) -> Table | None:
    """Return a table with one row per completed preemption or migration, None if there was none."""
    if not run.reschedulings:
        return None
    rows = tuple(tuple(penalty_cells(each, _number)) for each in run.reschedulings)
    caption = (
        "Wall seconds by the controller's monotonic clock. The penalty is save + transfer + wait + restore + downtime "
        "+ first progress (until every task has progressed). It includes neither the time of a live migration nor the "
        f"pause, in which the policy did not select the job to run. n = {len(rows)}."
    )
    columns = (
        "job", "reason", "mechanism", "tasks moved", "save", "transfer", "wait", "restore", "downtime",
        "first progress", "penalty", "live", "paused", "MiB saved", "MiB sent", "MiB read", "MiB live",
    )  # fmt: skip
    return Table("penalties", "Rescheduling penalties", caption, columns, rows, texts=3)


def metrics_table(runs: Sequence[RunFacts], labels: Sequence[str]) -> Table:
    """Return the table of all metrics, one column per run."""
    rows = [("jobs done / all", "", *(f"{run.done} / {len(run.jobs)}" for run in runs))]
    for name, title in METRICS:
        units = (str(run.metrics.get(name, {}).get("unit", "")) for run in runs)
        unit = next((_SHORT_UNITS.get(unit, unit) for unit in units if unit), "")
        values = (run.metrics.get(name, {}).get("value") for run in runs)
        rows.append((title.strip(), unit, *("–" if value is None else _figure(value) for value in values)))
    if any(run.history.resumes for run in runs):
        rows.append((BLIND, "s", *(_figure(run.blind_s) for run in runs)))
    caption = (
        "Metrics of summary.json with four significant digits; a dash for a metric without measurements. Seconds are "
        "wall seconds unless the unit is trace seconds."
    )
    return Table("metrics", "All metrics", caption, ("metric", "unit", *labels), tuple(rows), texts=2)


def latency_table(rows: Sequence[Quantiles]) -> Table | None:
    """Return the table of latency quantiles in milliseconds, None without any latency."""
    if not rows:
        return None
    cells = tuple(
        (row.what, f"{row.count:,}", *(f"{value * 1e3:,.2f}" for value in (row.p50_s, row.p95_s, row.p99_s, row.max_s)))
        for row in rows
    )
    caption = (
        "Milliseconds of wall time; n is the number of events. An operation lasts from its first command to its last "
        "answer; only successful operations are counted."
    )
    return Table("latencies", "Latencies", caption, ("latency", "n", "median", "95 %", "99 %", "maximum"), cells)


def nodes_table(run: RunFacts) -> Table | None:
    """Return the table of the nodes' facts, None if the manifest has no nodes."""
    nodes = run.manifest.get("nodes") or {}
    if not nodes:
        return None
    rows = []
    for name, facts in nodes.items():
        kind, size = node_cells(facts)
        rows.append((str(name), *kind, ", ".join(map(str, facts.get("capabilities", ()))), *size))
    columns = ("node", "driver", "accelerator", "kernel", "processor", "capabilities", "cores", "memory MiB")
    caption = "Facts that the agents announced; cores: the node's part of the cores of its machine."
    return Table("nodes", "Nodes", caption, columns, tuple(rows), texts=6)


def node_cells(facts: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the cells of a node's kind (driver, accelerator, kernel, processor) and of its size (cores, memory)."""
    words = map(str, facts.get("capabilities", ()))
    accelerator = next((word.removeprefix("accel:") for word in words if word.startswith("accel:")), "–")
    kind = [str(facts.get("driver", "–")), accelerator, str(facts.get("kernel", "–")), str(facts.get("cpu_model", "–"))]
    size = [f"{facts.get('cpus', 0):g} of {facts.get('machine_cores', '–')}", f"{facts.get('memory_mib', 0):,}"]
    return kind, size


def provenance(run: RunFacts) -> list[tuple[str, str]]:
    """Return the provenance of a run as pairs of name and value."""
    versions = run.manifest.get("versions") or {}
    controller = run.manifest.get("controller") or {}
    first = [
        ("run", run.name),
        ("run tag", run.tag or "unknown"),
        ("began", run.when),
        ("scenario", run.scenario),
        ("policy", run.policy),
        ("period", _period(run.manifest)),
        ("seed", "unknown" if run.seed is None else str(run.seed)),
        ("time scale", f"{run.time_scale:g} trace seconds per wall second"),
        ("controller", ", ".join(f"{key} {value}" for key, value in controller.items()) or "unknown"),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items()) or "unknown"),
    ]
    rates = run.manifest.get("units_per_core_s") or {}
    if rates:
        first.append(("dedicated rates", "; ".join(f"{kind}: {rate:,.0f} units/s" for kind, rate in rates.items())))
    return first


def _period(manifest: Mapping[str, Any]) -> str:
    if "period_s" not in manifest:
        return "unknown"
    period_s = manifest["period_s"]
    return "none: the policy decides at events only" if period_s is None else f"{period_s:g} trace s"


def scenario_text(run: RunFacts) -> str | None:
    """Return the scenario of a run as indented JSON, None if the manifest has none."""
    scenario = run.manifest.get("scenario")
    return None if scenario is None else json.dumps(scenario, indent=2, ensure_ascii=False)


def groups_table(groups: Sequence[Group]) -> Table:
    """Return the table of the groups of repeats."""
    rows = tuple(
        (group.policy, group.runs[0].scenario, str(group.runs[0].seed), ", ".join(run.name for run in group.runs),
         str(len(group.runs)))
        for group in groups
    )  # fmt: skip
    caption = "Runs of the same scenario, policy and seed are repeats; the run is the independent unit."
    return Table("runs", "Runs", caption, ("policy", "scenario", "seed", "runs", "n"), rows, texts=4)


def bands_table(groups: Sequence[Group], metrics: Sequence[str]) -> Table | None:
    """Return the table of the noise bands of groups with repeats, None if there is none."""
    rows = []
    for group in groups:
        for metric in metrics:
            band = band_of(group, metric)
            if band is None:
                continue
            mean = band.mean
            interval = "–" if mean is None else f"{_figure(mean.value)} ± {_figure(mean.high - mean.value)}"
            unit = str(group.runs[0].metrics[metric].get("unit", ""))
            rows.append(
                (group.policy, _title(metric, unit), str(band.count), _figure(band.low), _figure(band.high), interval)
            )
    if not rows:
        return None
    caption = (
        "Minimum and maximum over repeats of the same scenario, policy and seed, and their mean with its 95 % "
        "t-interval; n: number of runs, with one value each."
    )
    columns = ("policy", "metric", "n", "minimum", "maximum", "mean ± 95 %")
    return Table("bands", "Noise bands", caption, columns, tuple(rows), texts=2)


def verdicts_table(found: Sequence[Verdict]) -> Table | None:
    """Return the table of the verdicts on policies against noise bands, None without verdicts."""
    if not found:
        return None
    rows = tuple(
        (
            _title(one.metric, one.unit), one.group.label, ", ".join(map(_figure, one.values)),
            f"{_figure(one.band.low)} to {_figure(one.band.high)} ({one.reference.label})", one.words,
        )
        for one in found
    )  # fmt: skip
    caption = (
        "A value within the range of the repeats cannot be distinguished from noise. The range of few repeats is "
        "narrow, so a value outside it is a hint to repeat both policies, not a proof."
    )
    columns = ("metric", "policy", "values", "noise band of", "verdict")
    return Table("verdicts", "Policies against noise bands", caption, columns, rows, texts=5)


def _figure(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.3g}"


def _title(metric: str, unit: str) -> str:
    title, short = _TITLES.get(metric, metric).strip(), _SHORT_UNITS.get(unit, unit)
    return f"{title} ({short})" if short else title
