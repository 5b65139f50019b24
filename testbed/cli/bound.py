"""`testbed bound`: the maximum stretch that no schedule of a trace can beat."""

# ruff: noqa: PLC0415 - what the command needs is imported in it, so that --help is quick.

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from testbed.bus.limits import MOST_NODES
from testbed.errors import UserError

if TYPE_CHECKING:
    from testbed.scheduling.bound.max_stretch import Kind
    from testbed.scheduling.workload.jobs import Job


@click.command(
    short_help="Bound the maximum stretch of a trace from below.",
    epilog="\b\nExample, the 11th week of HPC2N as [RR] cuts it:\n"
    "  testbed bound HPC2N-2002-2.2-cln.swf.gz --reading hpc2n --week 10 --nodes 120",
)
@click.argument("trace_file", metavar="TRACE", type=click.Path(path_type=Path))
@click.option("--nodes", type=int, required=True, help="Nodes of the cluster.")
@click.option("--tau-s", type=float, default=10.0, show_default=True, help="Threshold of the bounded stretch, seconds.")
@click.option(
    "--kind",
    type=click.Choice(["theorem1", "fluid"]),
    default="theorem1",
    show_default=True,
    help="theorem1: of [RR]; fluid: without its constraint (1d), looser, what the published degradations fit.",
)
@click.option(
    "--reading", metavar="NAME", help="How an SWF log becomes tasks, such as hpc2n [RR 5.3.1]; job tables take none."
)
@click.option("--week", metavar="K", type=int, help="Only the jobs with submit time // 604800 = K.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def bound(
    trace_file: Path, nodes: int, tau_s: float, kind: str, reading: str | None, week: int | None, as_json: bool
) -> None:
    """Print a lower bound on the maximum bounded stretch of any schedule of TRACE, clairvoyant or not [RR Theorem 1].

    It is within a factor of 1 + accuracy_frac of the least maximum stretch with free moves and unlimited memory. A
    schedule's degradation from bound is its maximum stretch over this. elapsed_s is the time that the bound took,
    without reading the trace; with many jobs it holds the loading of machine code.
    """
    import json
    from time import perf_counter

    if nodes < 1:
        raise UserError(f"--nodes {nodes}: expected 1 or more")
    if nodes > MOST_NODES:
        raise UserError(f"--nodes {nodes}: expected at most {MOST_NODES}")
    if not 0 <= tau_s < math.inf:
        raise UserError(f"--tau-s {tau_s:g}: expected seconds, 0 or more")
    jobs = _jobs(trace_file, reading, week)
    from testbed.scheduling.bound.max_stretch import ACCURACY
    from testbed.scheduling.bound.max_stretch import bound as lower_bound

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
    from testbed.scheduling.workload.segments import Week, cut
    from testbed.scheduling.workload.trace import load_trace

    jobs = load_trace(trace_file, reading)
    if week is not None:
        return cut(jobs, Week(week))
    if not jobs:
        raise UserError(f"{trace_file}: the trace has no jobs; a bound needs one or more")
    return jobs


def _tell_of_compilation(jobs: int) -> None:
    from testbed.scheduling.bound.max_stretch import will_compile

    if will_compile(jobs):
        click.echo("testbed: compiling kernels, once for this version; that takes some seconds", err=True)


def _table(figures: dict[str, object]) -> str:
    width = max(map(len, figures))
    shown = {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in figures.items()}
    return "\n".join(f"{name:<{width}}  {value}" for name, value in shown.items())
