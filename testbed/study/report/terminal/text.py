"""Terminal tables of a finished run, from its directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from testbed.errors import printable
from testbed.run import events
from testbed.study.report.run.facts import JobRow, RunFacts, read_facts
from testbed.study.report.terminal.order_words import Halting, text_of_order

METRICS = (
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
    ("live_migration_mean", "  duration, mean"),
    ("live_downtime_mean", "  downtime, mean"),
    ("live_downtime_max", "  downtime, max"),
    ("live_migration_gb_per_s", "  rate"),
    ("cap_error_mean", "cap error, mean absolute"),
    ("cap_windows", "  windows"),
    ("decide_mean", "decision time, mean"),
    ("decide_max", "decision time, max"),
    ("makespan_trace", "makespan in the trace"),
    ("makespan_wall", "makespan"),
)

BLIND = "time without a controller (not in other metrics)"


PHASES = ("save", "transfer", "wait", "restore", "downtime", "first_progress", "penalty", "live", "paused")
AMOUNTS = ("saved", "transferred", "restored", "migrated")


Number = Callable[[float | None, int], str]
"""Formats a number with so many decimal places, and None as a dash."""


def _number(value: float | None, digits: int) -> str:
    if value is None:
        return "-"
    return f"{value:,.{digits}f}" if abs(value) < 1e6 else f"{value:.3g}"


def _mib(count: float) -> str:
    return f"{count / (1 << 20):,.0f}"


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def jobs_table(run: RunFacts) -> Table:
    """Return the table of jobs, one row per job."""
    table = _table(
        f"Jobs (trace seconds; stretch bounded at {run.tau_s} s; penalty measured in wall seconds)",
        ("job", "tasks", "need", "mem", "submit", "start", "end", "run", "virtual",
         "stretch", "pre", "mig", "penalty s", "MiB moved", "state"),
    )  # fmt: skip
    for job in run.jobs:
        table.add_row(*job_cells(job, _number), job.state)
    return table


def job_cells(job: JobRow, number: Number) -> list[str]:
    """Return the cells of a job's row, without its state; `number` formats numbers."""
    live = f" ({job.live_migrations} live)" if job.live_migrations else ""
    return [
        str(job.job_id), str(job.tasks), number(job.cpu_need_frac, 2), number(job.mem_req_frac, 2),
        number(job.submit_time_s, 0), number(job.start_time_s, 0), number(job.end_time_s, 0),
        number(job.run_time_s, 0), number(job.virtual_time_s, 0), number(job.stretch, 2),
        str(job.preemptions), f"{job.migrations}{live}", number(job.penalty_s, 2), _mib(job.bytes_moved),
    ]  # fmt: skip


def penalties_table(run: RunFacts) -> Table | None:
    """Return a table with one row per completed preemption or migration, None if there was none."""
    if not run.reschedulings:
        return None
    table = _table(
        "Rescheduling penalties (wall seconds; first: until all tasks progress; live, paused: not in the penalty)",
        ("job", "reason", "how", "moved", "save", "transfer", "wait", "restore", "down", "first", "penalty", "live",
         "paused", "MiB saved", "sent", "read", "live"),
    )  # fmt: skip
    for each in run.reschedulings:
        table.add_row(*penalty_cells(each, _number))
    return table


def penalty_cells(each: events.Rescheduling, number: Number) -> list[str]:
    """Return the cells of a preemption's or migration's row; `number` formats numbers."""
    return [
        str(each.job), each.reason, each.mechanism, str(each.moved_tasks),
        *(number(getattr(each, f"{phase}_s"), 3) for phase in PHASES),
        *(_mib(getattr(each, f"{kind}_bytes")) for kind in AMOUNTS),
    ]  # fmt: skip


def metric_text(metric: object) -> str:
    """Return a metric's value with its unit, `-` for a metric without measurements."""
    if not isinstance(metric, Mapping) or metric.get("value") is None:
        return "-"
    value, unit = metric["value"], metric["unit"]
    text = _number(value, 0 if unit == "count" else 3)
    if unit == "s" and abs(value) < 1:
        return f"{value * 1000:.2f} ms"
    return text if unit in ("1", "count") else f"{text} {unit}"


def metrics_table(runs: Sequence[RunFacts]) -> Table:
    """Return the table of all metrics, one column per run."""
    table = _table("Summary", ("metric", *(run.policy for run in runs)))
    table.add_row("jobs done / all", *(f"{run.done} / {len(run.jobs)}" for run in runs))
    for name, title in METRICS:
        table.add_row(title, *(metric_text(run.metrics.get(name)) for run in runs))
    if any(run.history.resumes for run in runs):
        table.add_row(BLIND, *(f"{_number(run.blind_s, 3)} s" for run in runs))
    return table


def print_run(path: Path, console: Console) -> None:
    """Print the tables of a run directory."""
    print_facts(read_facts(path), console)


def print_facts(run: RunFacts, console: Console) -> None:
    """Print the tables of one run."""
    console.print(jobs_table(run))
    penalties = penalties_table(run)
    if penalties is not None:
        console.print(penalties)
    console.print(metrics_table([run]))
    for job, reason in run.failed.items():
        console.print(
            printable(f"job {job} failed ({reason.code}): {reason.text}"),
            style="bold red",
            markup=False,
            highlight=False,
        )
    doubts = dict(run.summary.get("doubts", {})) if run.summary is not None else {}
    for job, reason in doubts.items():
        console.print(printable(f"job {job} is doubtful: {reason}"), style="bold yellow", markup=False, highlight=False)
    for remark in run.remarks:
        if isinstance(remark, Halting):
            text = printable(f"at {remark.t_s:.1f} s {text_of_order(remark)}")
            console.print(text, style="yellow", markup=False, highlight=False)
    if run.summary is None:
        console.print("This run is incomplete: its controller ended before it wrote a summary.", style="bold yellow")
    elif not run.complete:
        console.print("This run is incomplete: it ended before all of its jobs.", style="bold yellow")


def print_comparison(paths: Sequence[Path], console: Console) -> None:
    """Print the metrics of several runs side by side."""
    console.print(metrics_table([read_facts(path) for path in paths]))
