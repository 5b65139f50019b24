"""`testbed simulate`: simulates a trace in virtual time under one or more policies."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import cast

import click
from rich import box
from rich.table import Table

from testbed.bus.limits import LEAST_PERIOD_S, MOST_NODES, MOST_TRACE_S
from testbed.errors import UserError
from testbed.host.whole_files import draft_of
from testbed.measure.rundir import JOB_COLUMNS
from testbed.scheduling.bound.max_stretch import Kind
from testbed.scheduling.bound.max_stretch import bound as lower_bound
from testbed.scheduling.compiler import can_compile
from testbed.scheduling.simulation.compiling import COMPILE_S, Compiling, When
from testbed.scheduling.simulation.measures import Measures, measure
from testbed.scheduling.simulation.named import Named, named
from testbed.scheduling.simulation.overheads import (
    DEFAULT_NODE_MEMORY_GB,
    DEFAULT_PENALTY_S,
    Overheads,
    constant,
)
from testbed.scheduling.simulation.overheads_parser import parse_overheads
from testbed.scheduling.simulation.ranks import SharingModel
from testbed.scheduling.simulation.run import SimulatedRun
from testbed.scheduling.simulation.simulate import must_compile
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.segments import Week, cut
from testbed.scheduling.workload.trace import load_trace
from testbed.study.report.terminal.console import wide_console


def simulate(
    trace_file: Path,
    nodes: int,
    names: tuple[str, ...],
    period_s: float,
    penalty_s: float | None,
    overheads_text: str | None,
    bound_kind: str,
    tau_s: float,
    node_memory_gb: float | None,
    reading: str | None,
    week: int | None,
    imbalance: str,
    jobs_out: Path | None,
    compile_kernels: bool | None,
    as_json: bool,
    debug_invariants: bool,
) -> None:
    _check(nodes, period_s, tau_s, node_memory_gb)
    overheads = _overheads(penalty_s, overheads_text)
    policies = [named(name, period_s) for name in dict.fromkeys(names)]
    files = _files(jobs_out, policies)
    jobs = _jobs(trace_file, reading, week)
    memory_gb = DEFAULT_NODE_MEMORY_GB if node_memory_gb is None else node_memory_gb
    bound: float | None = None
    measures: dict[str, Measures] = {}
    for number, policy in enumerate(policies, start=1):
        compiling = _compiling(compile_kernels, policy, len(policies) - number)
        run = policy.simulate(
            jobs, nodes, overheads, debug_invariants, node_memory_gb=memory_gb, compiling=compiling,
            sharing=SharingModel(imbalance=imbalance),
        )  # fmt: skip
        if bound is None and bound_kind != "none":
            bound = lower_bound(jobs, nodes, tau_s, cast("Kind", bound_kind), compiling=compile_kernels)
        measures[policy.name] = measure(run, bound, memory_gb, tau_s)
        if jobs_out is not None:
            _write_jobs(jobs_out / files[policy.name], run, memory_gb, tau_s)
    if as_json:
        click.echo(json.dumps({name: each.as_dict() for name, each in measures.items()}, allow_nan=False))
    else:
        _print(measures)


def _check(nodes: int, period_s: float, tau_s: float, node_memory_gb: float | None) -> None:
    if nodes < 1:
        raise UserError(f"--nodes {nodes}: expected 1 or more")
    if nodes > MOST_NODES:
        raise UserError(f"--nodes {nodes}: expected at most {MOST_NODES}")
    if not LEAST_PERIOD_S <= period_s <= MOST_TRACE_S:
        raise UserError(f"--period-s {period_s:g}: expected seconds, from {LEAST_PERIOD_S:g} to {MOST_TRACE_S:.0f}")
    if not 0 <= tau_s < math.inf:
        raise UserError(f"--tau-s {tau_s:g}: expected seconds, 0 or more")
    if node_memory_gb is not None and not 0 < node_memory_gb < math.inf:
        raise UserError(f"--node-memory-gb {node_memory_gb:g}: expected GB, more than 0")


def _compiling(wanted: bool | None, policy: Named, alike: int) -> Compiling:
    """Return when to compile kernels for `policy`, with `alike` more policies to come; announce it if at once."""
    if wanted and not can_compile():
        raise UserError("--compile: numba is not installed: pip install 'dfrs-testbed[simulate]'")
    if wanted and must_compile(policy.loop):
        _announce()
    when = When.IF_SOONER if wanted is None else When.AT_ONCE if wanted else When.NEVER
    return Compiling(when, alike, _announce)


def _announce() -> None:
    click.echo(
        f"testbed: compiling kernels, once for this version, about {COMPILE_S:.0f} s; later runs take milliseconds",
        err=True,
    )


def _overheads(penalty_s: float | None, text: str | None) -> Overheads:
    if text is None:
        return constant(DEFAULT_PENALTY_S if penalty_s is None else penalty_s)
    if penalty_s is not None:
        raise UserError(f"--penalty-s {penalty_s:g} and --overheads {text}: expected one of them")
    return parse_overheads(text)


def _jobs(trace_file: Path, reading: str | None, week: int | None) -> list[Job]:
    jobs = load_trace(trace_file, reading)
    if not jobs:
        raise UserError(f"{trace_file}: the trace has no jobs; a simulation needs one or more")
    return jobs if week is None else cut(jobs, Week(week))


def _files(jobs_out: Path | None, policies: list[Named]) -> dict[str, str]:
    """Return the name of a file for each policy, and make the folder."""
    files = {policy.name: safe_name(policy.name) + ".csv" for policy in policies}
    if len({file.casefold() for file in files.values()}) < len(files):
        raise UserError(f"--jobs-out: several policies would write the same file: {', '.join(files.values())}")
    if jobs_out is not None:
        try:
            jobs_out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--jobs-out {jobs_out}: cannot make the folder: {error.strerror}") from error
    return files


def safe_name(policy: str) -> str:
    """Return a policy's name as a file name: `GreedyPM */per/OPT=MIN` becomes `GreedyPM+-per-OPT=MIN`."""
    plain = policy.replace(" *", "+").strip("/")
    return "".join(char if char.isalnum() or char in "+=._-" else "-" for char in plain)


def _write_jobs(path: Path, run: SimulatedRun, node_memory_gb: float, tau_s: float) -> None:
    try:
        with draft_of(path) as draft, draft.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(JOB_COLUMNS)
            writer.writerows(run.job_rows(node_memory_gb, tau_s))
    except OSError as error:
        raise UserError(f"{path}: cannot write: {error.strerror}") from error


def _print(measures: dict[str, Measures]) -> None:
    """Print one row per measure, one column per policy."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for name in measures:
        table.add_column(name, justify="right", overflow="fold")
    columns = [each.as_dict() for each in measures.values()]
    for name in columns[0]:
        table.add_row(name, *(_show(column[name]) for column in columns))
    console = wide_console()
    console.print(table, markup=False, highlight=False)


def _show(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) < 1e-12:
        return "0"  # a difference of equal sums
    return f"{value:.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
