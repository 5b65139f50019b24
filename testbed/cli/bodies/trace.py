"""`testbed trace`: inspects, cuts, changes, converts and generates traces."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import click

from testbed.errors import UserError
from testbed.scheduling.workload.accounting import SiteNode
from testbed.scheduling.workload.load import offered_load, scale_load
from testbed.scheduling.workload.marc import MarcModel, marc_trace
from testbed.scheduling.workload.segments import JobRange, Segment, Week, Window, cut
from testbed.scheduling.workload.sites import read_accounting
from testbed.scheduling.workload.statistics import describe
from testbed.scheduling.workload.synthetic import annotate as with_needs
from testbed.scheduling.workload.synthetic import synthetic_trace
from testbed.scheduling.workload.table import format_table
from testbed.scheduling.workload.trace import check_table_name, convert_trace, is_log, load_trace, save_trace
from testbed.scheduling.workload.week_folder import write_weeks
from testbed.study.analysis.as_trace import jobs_of_run

_Value = TypeVar("_Value", int, float)


def info(trace_file: Path, nodes: int | None, reading: str | None, as_json: bool) -> None:
    figures = asdict(describe(load_trace(trace_file, reading), nodes))
    click.echo(json.dumps(figures) if as_json else _table(figures))


def segment(
    trace_file: Path,
    out: Path | None,
    jobs: str | None,
    window: str | None,
    week: int | None,
    weeks: Path | None,
    reading: str | None,
) -> None:
    chosen = _segment(jobs, window, week, weeks)
    if (out is None) == (weeks is None):
        raise UserError("expected OUT, a job table, for one segment, and none beside --weeks DIR")
    trace_jobs = load_trace(trace_file, reading)
    if out is not None and chosen is not None:
        segment_jobs = cut(trace_jobs, chosen)
        save_trace(out, segment_jobs)
        click.echo(f"{out}: {len(segment_jobs)} jobs", err=True)
    elif weeks is not None:
        click.echo(f"{weeks}: {len(write_weeks(weeks, trace_jobs))} weeks, {len(trace_jobs)} jobs", err=True)


def annotate(trace_file: Path, out: Path, seed: int, reading: str | None) -> None:
    if reading is None and is_log(trace_file):
        reading = "processors"
    jobs = with_needs(load_trace(trace_file, reading), seed)
    save_trace(out, jobs)
    click.echo(f"{out}: {len(jobs)} jobs", err=True)


def scale(trace_file: Path, out: Path, nodes: int, load: float, reading: str | None) -> None:
    jobs = load_trace(trace_file, reading)
    scaled = scale_load(jobs, nodes, load)
    save_trace(out, scaled)
    click.echo(f"{out}: {len(jobs)} jobs, offered load {offered_load(jobs, nodes):.4g} -> {load:.4g}", err=True)


def convert(
    trace_file: Path,
    out: Path,
    reading: str | None,
    source: str | None,
    cores_per_node: int | None,
    node_memory_gb: float | None,
    task: str | None,
    timezone: str | None,
) -> None:
    if source in (None, "run"):
        of_sites = {"--cores-per-node": cores_per_node, "--node-memory-gb": node_memory_gb, "--task": task}
        for option, value in {**of_sites, "--timezone": timezone}.items():
            if value is not None:
                raise UserError(f"{option} {value}: expected --from sacct or --from qacct beside it")
    if source is not None and reading is not None:
        raise UserError(f"--reading {reading}: expected none beside --from; it is for SWF logs")
    if source is None:
        count = convert_trace(trace_file, out, reading)
    elif source == "run":
        check_table_name(out)
        jobs = jobs_of_run(trace_file)
        save_trace(out, jobs)
        count = len(jobs)
    else:
        if cores_per_node is None:
            raise UserError(
                f"--from {source}: expected --cores-per-node N beside it, to turn cores into parts of a node"
            )
        node = SiteNode(cores_per_node, node_memory_gb, task or "core")
        check_table_name(out)
        jobs = read_accounting(trace_file, source, node, timezone)
        save_trace(out, jobs)
        count = len(jobs)
    click.echo(f"{out}: {count} jobs", err=True)


def lublin(nodes: int, jobs: int, seed: int, mode: str, load: float | None, out: Path | None) -> None:
    made = synthetic_trace(nodes, jobs, seed, mode)
    if load is not None:
        made = scale_load(made, nodes, load)
    if out is None:
        click.echo(format_table(made), nl=False)
    else:
        save_trace(out, made)


def marc(
    weeks: int,
    seed: int,
    rate: float,
    cv: float,
    farm_jobs: float,
    parallel_farm_jobs: float,
    daily: float,
    weekend: float,
    urgent_s: float,
    memory: float,
    out: Path | None,
) -> None:
    model = MarcModel(rate, cv, farm_jobs, parallel_farm_jobs, daily, weekend, urgent_s, memory)
    made = marc_trace(seed, weeks, model)
    if out is None:
        click.echo(format_table(made), nl=False)
    else:
        save_trace(out, made)


def _segment(jobs: str | None, window: str | None, week: int | None, weeks: Path | None) -> Segment | None:
    """Return the requested segment, None for all weeks."""
    match jobs, window, week, weeks:
        case str(text), None, None, None:
            return JobRange(*_pair("--jobs", text, "FIRST:COUNT", int))
        case None, str(text), None, None:
            return Window(*_pair("--window", text, "START:DURATION", float))
        case None, None, int(index), None:
            return Week(index)
        case None, None, None, Path():
            return None
    raise UserError("expected exactly one of --jobs FIRST:COUNT, --window START:DURATION, --week K, --weeks DIR")


def _pair(option: str, text: str, form: str, convert: Callable[[str], _Value]) -> tuple[_Value, _Value]:
    try:
        first, second = text.split(":")
        return convert(first), convert(second)
    except ValueError:
        raise UserError(f"{option} {text}: expected {form}, two numbers") from None


def _table(figures: dict[str, object]) -> str:
    """Return one line per figure, with its name and its value; decimals have four significant digits."""
    width = max(map(len, figures))
    return "\n".join(f"{name:<{width}}  {_show(value)}" for name, value in figures.items() if value is not None)


def _show(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {count}" for key, count in value.items()) or "none"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
