"""Tables of a finished run, read from its directory alone."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from rich import box
from rich.console import Console
from rich.table import Table

from testbed.errors import UserError
from testbed.measure.rundir import read_journal, read_json

_METRICS = (
    ("max_stretch", "max bounded stretch"),
    ("mean_stretch", "mean bounded stretch"),
    ("bound", "lower bound of the max stretch"),
    ("degradation", "degradation from bound"),
    ("preemptions", "preemptions"),
    ("migrations", "migrations"),
    ("restores", "restores"),
    ("restores_on_another_node", "  on another node"),
    ("penalty_mean", "rescheduling penalty, mean"),
    ("penalty_max", "rescheduling penalty, max"),
    ("preemption_gb", "moved by preemptions"),
    ("migration_gb", "moved by migrations"),
    ("preemption_gb_per_s", "preemption bandwidth"),
    ("migration_gb_per_s", "migration bandwidth"),
    ("save_gb_per_s", "rate while saving"),
    ("live_migrations", "live migrations"),
    ("live_migration_mean", "  time of one, mean"),
    ("live_downtime_mean", "  downtime, mean"),
    ("live_downtime_max", "  downtime, max"),
    ("live_migration_gb_per_s", "  rate"),
    ("cap_error_mean", "cap error, mean absolute"),
    ("cap_windows", "  windows of it"),
    ("decide_mean", "time to decide, mean"),
    ("decide_max", "time to decide, max"),
    ("makespan_trace", "makespan in the trace"),
    ("makespan_wall", "makespan"),
)

NARROWEST = 140


def wide_console(*, stderr: bool = False) -> Console:
    """Return a console for tables: as wide as the terminal, and wide enough for them where there is none."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=max(console.width, NARROWEST))


_PHASES = ("save", "transfer", "wait", "restore", "downtime", "first_progress", "penalty", "live", "paused")
_AMOUNTS = ("saved", "transferred", "restored", "migrated")


def read_run(path: Path) -> dict[str, object]:
    """Return `manifest`, `summary`, `jobs` (rows as text) and `reschedulings` of a run directory."""
    if not path.is_dir():
        raise UserError(f"{path}: no such run directory")
    summary = read_json(path / "summary.json")
    manifest = read_json(path / "manifest.json") if (path / "manifest.json").exists() else {}
    try:
        with (path / "jobs.csv").open(encoding="utf-8", newline="") as file:
            jobs = list(csv.DictReader(file))
    except OSError as error:
        raise UserError(f"{path / 'jobs.csv'}: cannot read: {error.strerror}") from error
    journal = read_journal(path / "events.jsonl")
    return {
        "manifest": manifest,
        "summary": summary,
        "jobs": jobs,
        "reschedulings": [entry for entry in journal if entry["kind"] == "rescheduling"],
        "states": {str(entry["job"]): str(entry["state"]) for entry in journal if entry["kind"] == "job"},
    }


def _number(text: object, digits: int = 2) -> str:
    if text in (None, ""):
        return "-"
    value = float(cast("str", text))
    return f"{value:,.{digits}f}" if abs(value) < 1e6 else f"{value:.3g}"


def _mib(text: object) -> str:
    return f"{float(cast('str', text)) / (1 << 20):,.0f}"


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def jobs_table(run: Mapping[str, object]) -> Table:
    """One row a job."""
    tau = cast("dict[str, object]", run["summary"]).get("stretch_bound_s", 10)
    table = _table(
        f"Jobs (trace seconds; stretch bounded at {tau} s; penalty measured in wall seconds)",
        ("job", "tasks", "need", "mem", "submit", "start", "end", "run", "virtual",
         "stretch", "pre", "mig", "penalty s", "MiB moved", "state"),
    )  # fmt: skip
    states = cast("dict[str, str]", run["states"])
    for row in cast("list[dict[str, str]]", run["jobs"]):
        table.add_row(
            row["job_id"], row["tasks"], _number(row["cpu_need_frac"]), _number(row["mem_req_frac"]),
            _number(row["submit_time_s"], 0), _number(row["start_time_s"], 0), _number(row["end_time_s"], 0),
            _number(row["run_time_s"], 0), _number(row["virtual_time_s"], 0), _number(row["stretch"]),
            row["preemptions"], _migrations(row), _number(row["penalty_s"]), _mib(row["bytes_moved"]),
            states.get(row["job_id"], "coming"),
        )  # fmt: skip
    return table


def _migrations(row: Mapping[str, str]) -> str:
    """How many migrations, and how many of them live."""
    live = row.get("live_migrations", "0")
    return row["migrations"] if live == "0" else f"{row['migrations']} ({live} live)"


def penalties_table(run: Mapping[str, object]) -> Table | None:
    """One row a completed preemption or migration, or None if there was none."""
    entries = cast("list[dict[str, object]]", run["reschedulings"])
    if not entries:
        return None
    table = _table(
        "Rescheduling penalties (wall seconds; first: until all tasks progress; live, paused: no part of the penalty)",
        ("job", "reason", "how", "moved", "save", "transfer", "wait", "restore", "down", "first", "penalty", "live",
         "paused", "MiB saved", "sent", "read", "live"),
    )  # fmt: skip
    for entry in entries:
        table.add_row(
            str(entry["job"]), str(entry["reason"]), str(entry.get("mechanism", "save-restore")),
            str(entry["moved_tasks"]), *(_number(entry.get(f"{phase}_s", 0.0), 3) for phase in _PHASES),
            *(_mib(entry.get(f"{kind}_bytes", 0)) for kind in _AMOUNTS),
        )  # fmt: skip
    return table


def _cell(metric: object) -> str:
    if not isinstance(metric, dict) or metric.get("value") is None:
        return "-"
    value, unit = metric["value"], metric["unit"]
    text = _number(value, 0 if unit == "count" else 3)
    if unit == "s" and abs(value) < 1:
        return f"{value * 1000:.2f} ms"
    return text if unit in ("1", "count") else f"{text} {unit}"


def metrics_table(summaries: Sequence[Mapping[str, object]]) -> Table:
    """All metrics, a column a run."""
    table = _table("In all", ("metric", *(str(summary["policy"]) for summary in summaries)))
    metrics = [cast("dict[str, object]", summary["metrics"]) for summary in summaries]
    table.add_row("jobs done / all", *(f"{summary['done']} / {summary['jobs']}" for summary in summaries))
    for name, title in _METRICS:
        table.add_row(title, *(_cell(values.get(name)) for values in metrics))
    return table


def print_run(path: Path, console: Console) -> None:
    """Print the tables of one run."""
    run = read_run(path)
    summary = cast("dict[str, object]", run["summary"])
    console.print(jobs_table(run))
    penalties = penalties_table(run)
    if penalties is not None:
        console.print(penalties)
    console.print(metrics_table([summary]))
    for job, reason in cast("dict[str, str]", summary["failed"]).items():
        console.print(f"job {job} failed: {reason}", style="bold red", markup=False, highlight=False)
    if not summary["complete"]:
        console.print("This run is incomplete: it ended before all jobs had.", style="bold yellow")


def print_comparison(paths: Sequence[Path], console: Console) -> None:
    """Print the metrics of several runs side by side."""
    console.print(metrics_table([read_json(path / "summary.json") for path in paths]))
