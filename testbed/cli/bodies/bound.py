"""`testbed bound`: a lower bound of the maximum stretch of all schedules of a trace."""

from __future__ import annotations

import json
import math
from pathlib import Path
from time import perf_counter
from typing import cast

import click

from testbed.bus.limits import MOST_NODES
from testbed.errors import UserError
from testbed.scheduling.bound.max_stretch import ACCURACY, Kind, will_compile
from testbed.scheduling.bound.max_stretch import bound as lower_bound
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.segments import Week, cut
from testbed.scheduling.workload.trace import load_trace


def bound(
    trace_file: Path, nodes: int, tau_s: float, kind: str, reading: str | None, week: int | None, as_json: bool
) -> None:
    if nodes < 1:
        raise UserError(f"--nodes {nodes}: expected 1 or more")
    if nodes > MOST_NODES:
        raise UserError(f"--nodes {nodes}: expected at most {MOST_NODES}")
    if not 0 <= tau_s < math.inf:
        raise UserError(f"--tau-s {tau_s:g}: expected seconds, 0 or more")
    jobs = _jobs(trace_file, reading, week)

    _tell_of_compilation(len(jobs))
    begun_s = perf_counter()
    least = lower_bound(jobs, nodes, tau_s, cast("Kind", kind))
    figures = {
        "bound": least,
        "kind": kind,
        "jobs": len(jobs),
        "nodes": nodes,
        "tau_s": tau_s,
        "accuracy_frac": ACCURACY,
        "elapsed_s": perf_counter() - begun_s,
    }
    click.echo(json.dumps(figures) if as_json else _table(figures))


def _jobs(trace_file: Path, reading: str | None, week: int | None) -> list[Job]:
    jobs = load_trace(trace_file, reading)
    if week is not None:
        return cut(jobs, Week(week))
    if not jobs:
        raise UserError(f"{trace_file}: the trace has no jobs; a bound needs one or more")
    return jobs


def _tell_of_compilation(jobs: int) -> None:
    if will_compile(jobs):
        click.echo("testbed: compiling kernels, once for this version; that takes some seconds", err=True)


def _table(figures: dict[str, object]) -> str:
    width = max(map(len, figures))
    shown = {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in figures.items()}
    return "\n".join(f"{name:<{width}}  {value}" for name, value in shown.items())
