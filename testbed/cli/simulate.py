"""`testbed simulate`: a trace in virtual time under one or more policies."""

# ruff: noqa: PLC0415 - what the command needs is imported in it, so that --help is quick.

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from testbed.bus.limits import LEAST_PERIOD_S, MOST_NODES, MOST_TRACE_S
from testbed.errors import UserError

if TYPE_CHECKING:
    from testbed.scheduling.bound.max_stretch import Kind
    from testbed.scheduling.simulation.compiling import Compiling
    from testbed.scheduling.simulation.measures import Measures
    from testbed.scheduling.simulation.named import Named
    from testbed.scheduling.simulation.overheads import Overheads
    from testbed.scheduling.simulation.run import SimulatedRun
    from testbed.scheduling.workload.jobs import Job


@click.command(
    short_help="Replay a trace in virtual time under policies.",
    epilog="\b\nExamples:\n"
    "  testbed trace generate lublin --nodes 128 --jobs 1000 --seed 1 -o trace.csv\n"
    '  testbed simulate trace.csv --nodes 128 --policy "GreedyPM */per/OPT=MIN/MINVT=600" --policy EASY\n'
    "  testbed simulate trace.csv --nodes 128 --policy EASY --policy DYNMCB8-PER --overheads calibration.toml\n"
    "  testbed simulate KTH-SP2-1996.swf.gz --reading processors --nodes 100 --policy FCFS --jobs-out out",
)
@click.argument("trace_file", metavar="TRACE", type=click.Path(path_type=Path))
@click.option("--nodes", type=int, required=True, help="Nodes; under the reading processors, processors.")
@click.option("--policy", "names", metavar="NAME", multiple=True, required=True, help="Repeat it to compare policies.")
@click.option("--period-s", type=float, default=600.0, show_default=True, help="Period of those that have one.")
@click.option("--penalty-s", type=float, help="Seconds without progress after a resume or migration.  [default: 300]")
@click.option(
    "--overheads",
    "overheads_text",
    metavar="MODEL",
    help="Instead of --penalty-s: a calibration or another .toml file with a table [overheads], its mean penalty "
    "(FILE.toml#constant), constant:SECONDS, linear:fixed_s=…,gb_per_s=…[,total_gb_per_s=…], or a plug-in.",
)
@click.option(
    "--bound",
    "bound_kind",
    type=click.Choice(["theorem1", "fluid", "none"]),
    default="theorem1",
    show_default=True,
    help="Lower bound on the max stretch that degradation is from; fluid: without constraint (1d) of [RR].",
)
@click.option("--tau-s", type=float, default=10.0, show_default=True, help="Threshold of the bounded stretch, seconds.")
@click.option(
    "--node-memory-gb",
    type=float,
    help="Memory of a node in 1e9 bytes, for bandwidths and overheads.  [default: 8, as 1 TB on 128 nodes in [RR 5.2]]",
)
@click.option("--reading", metavar="NAME", help="How an SWF log becomes tasks, such as hpc2n; job tables take none.")
@click.option("--week", metavar="K", type=int, help="Only the jobs with submit time // 604800 = K.")
@click.option("--jobs-out", metavar="DIR", type=click.Path(path_type=Path), help="Write DIR/<policy>.csv, a row a job.")
@click.option(
    "--compile/--no-compile",
    "compile_kernels",
    default=None,
    help="Whether kernels are compiled that never were; it takes minutes, once.  [default: if the work is done sooner]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: policy, measure, value.")
@click.option("--debug-invariants", is_flag=True, help="Check every decision: memory, CPU, maps, yields, ends.")
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
    jobs_out: Path | None,
    compile_kernels: bool | None,
    as_json: bool,
    debug_invariants: bool,
) -> None:
    """Replay TRACE in virtual time on identical nodes under each policy, and print what came of it.

    Stretches are bounded (--tau-s); degradation is the max stretch over the lower bound of any schedule;
    underutilization is CPU that was wanted and there, but not used, over the work of the trace. Preemptions and
    migrations count jobs; for their bandwidth every task is written and read once. Rates are over the makespan, from
    the first submission to the last completion. Overheads of a file are seconds of a lab's clock: here, at time scale
    1, of the trace as well. Times to decide are wall time, and only there if a policy was asked;
    kernels that are not compiled decide the same, some hundred times slower.
    """
    import json

    _check(nodes, period_s, tau_s, node_memory_gb)
    from testbed.scheduling.simulation.named import named

    overheads = _overheads(penalty_s, overheads_text)
    policies = [named(name, period_s) for name in dict.fromkeys(names)]
    files = _files(jobs_out, policies)
    jobs = _jobs(trace_file, reading, week)
    from testbed.scheduling.simulation.measures import measure
    from testbed.scheduling.simulation.overheads import DEFAULT_NODE_MEMORY_GB

    memory_gb = DEFAULT_NODE_MEMORY_GB if node_memory_gb is None else node_memory_gb
    bound: float | None = None
    measures: dict[str, Measures] = {}
    for number, policy in enumerate(policies, start=1):
        compiling = _compiling(compile_kernels, policy, len(policies) - number)
        run = policy.simulate(
            jobs, nodes, overheads, debug_invariants, node_memory_gb=memory_gb, compiling=compiling
        )  # fmt: skip
        if bound is None and bound_kind != "none":
            from testbed.scheduling.bound.max_stretch import bound as lower_bound

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
    """Return when to compile for `policy`, with as many others to come, and say so where it is at once."""
    from testbed.scheduling.compiler import can_compile
    from testbed.scheduling.simulation.compiling import Compiling, When
    from testbed.scheduling.simulation.simulate import must_compile

    if wanted and not can_compile():
        raise UserError("--compile: numba is not installed: pip install 'dfrs-testbed[simulate]'")
    if wanted and must_compile(policy.loop):
        _announce()
    when = When.IF_SOONER if wanted is None else When.AT_ONCE if wanted else When.NEVER
    return Compiling(when, alike, _announce)


def _announce() -> None:
    from testbed.scheduling.simulation.compiling import COMPILE_S

    click.echo(
        f"testbed: compiling kernels, once for this version, about {COMPILE_S:.0f} s; later runs take milliseconds",
        err=True,
    )


def _overheads(penalty_s: float | None, text: str | None) -> Overheads:
    from testbed.scheduling.simulation.overheads import DEFAULT_PENALTY_S, constant
    from testbed.scheduling.simulation.overheads_parser import parse_overheads

    if text is None:
        return constant(DEFAULT_PENALTY_S if penalty_s is None else penalty_s)
    if penalty_s is not None:
        raise UserError(f"--penalty-s {penalty_s:g} and --overheads {text}: expected one of them")
    return parse_overheads(text)


def _jobs(trace_file: Path, reading: str | None, week: int | None) -> list[Job]:
    from testbed.scheduling.workload.segments import Week, cut
    from testbed.scheduling.workload.trace import load_trace

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
    """Return a policy's name for a file: `GreedyPM */per/OPT=MIN` becomes `GreedyPM+-per-OPT=MIN`."""
    plain = policy.replace(" *", "+").strip("/")
    return "".join(char if char.isalnum() or char in "+=._-" else "-" for char in plain)


def _write_jobs(path: Path, run: SimulatedRun, node_memory_gb: float, tau_s: float) -> None:
    import csv

    from testbed.host.whole_files import draft_of
    from testbed.measure.rundir import JOB_COLUMNS

    try:
        with draft_of(path) as draft, draft.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(JOB_COLUMNS)
            writer.writerows(run.job_rows(node_memory_gb, tau_s))
    except OSError as error:
        raise UserError(f"{path}: cannot write: {error.strerror}") from error


def _print(measures: dict[str, Measures]) -> None:
    """Print a row a measure, a column a policy."""
    from rich import box
    from rich.table import Table

    from testbed.study.report.terminal.text import wide_console

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
