"""`testbed trace`: look at traces, cut them, make them."""

# ruff: noqa: PLC0415 - what a command needs is imported in it, so that the others start fast.

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from testbed.errors import UserError

if TYPE_CHECKING:
    from testbed.workload.segments import Segment

_Value = TypeVar("_Value", int, float)

_FILE = click.Path(path_type=Path)
_reading = click.option(
    "--reading", metavar="NAME", help="How an SWF log becomes tasks, such as hpc2n [RR 5.3.1]; job tables take none."
)


@click.group(
    short_help="Look at job traces, cut them, make them.",
    epilog="\b\nExample:\n  testbed trace generate lublin --nodes 128 --jobs 1000 --seed 1 -o trace.csv",
)
def trace() -> None:
    """Look at job traces, cut them, make them.

    A trace is a job table (.csv, .csv.gz) or a log in the Standard Workload Format (.swf, .swf.gz) of the Parallel
    Workloads Archive, which needs a reading.
    """


@trace.command(
    epilog="\b\nExample:\n  testbed trace info HPC2N-2002-2.2-cln.swf.gz --reading hpc2n --nodes 120",
)
@click.argument("trace_file", metavar="TRACE", type=_FILE)
@click.option("--nodes", type=int, help="Nodes of the cluster, for the loads.")
@_reading
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def info(trace_file: Path, nodes: int | None, reading: str | None, as_json: bool) -> None:
    """Print the figures of a trace: jobs, span, sizes, run times, needs, loads."""
    import json
    from dataclasses import asdict

    from testbed.workload.statistics import describe
    from testbed.workload.trace import load_trace

    figures = asdict(describe(load_trace(trace_file, reading), nodes))
    click.echo(json.dumps(figures) if as_json else _table(figures))


@trace.command(
    epilog="\b\nExample, the 11th week of HPC2N as [RR] cuts it:\n"
    "  testbed trace segment HPC2N-2002-2.2-cln.swf.gz week10.csv --reading hpc2n --week 10",
)
@click.argument("trace_file", metavar="TRACE", type=_FILE)
@click.argument("out", metavar="OUT", type=_FILE)
@click.option("--jobs", metavar="FIRST:COUNT", help="COUNT jobs from index FIRST, 0 the first; re-based to the first.")
@click.option("--window", metavar="START:DURATION", help="Jobs submitted in it, in seconds; re-based to its start.")
@click.option("--week", metavar="K", type=int, help="Jobs with submit time // 604800 = K; re-based to its start.")
@_reading
def segment(
    trace_file: Path, out: Path, jobs: str | None, window: str | None, week: int | None, reading: str | None
) -> None:
    """Cut a segment out of TRACE and write it to OUT, a job table (.csv or .csv.gz)."""
    from testbed.workload.segments import cut
    from testbed.workload.trace import load_trace, save_trace

    chosen = _segment(jobs, window, week)
    segment_jobs = cut(load_trace(trace_file, reading), chosen)
    save_trace(out, segment_jobs)
    click.echo(f"{out}: {len(segment_jobs)} jobs", err=True)


@trace.group(short_help="Make synthetic traces.")
def generate() -> None:
    """Make synthetic traces."""


@generate.command(
    epilog="\b\nExample, one of the scaled traces of [RR 5.3.2]:\n"
    "  testbed trace generate lublin --nodes 128 --jobs 1000 --seed 1 --load 0.7 -o trace.csv",
)
@click.option("--nodes", type=int, required=True, help="Nodes of the cluster; the model was fitted for 128.")
@click.option("--jobs", type=int, required=True, help="How many jobs.")
@click.option("--seed", type=int, required=True, help="0 to 2^32 - 1; the same seed gives the same trace.")
@click.option(
    "--mode", default="mixed", show_default=True, help="mixed: batch and interactive jobs; typeless: neither."
)
@click.option("--load", type=float, help="Offered load to scale to, by stretching the inter-arrival times.")
@click.option("-o", "--out", type=_FILE, help="Job table to write (.csv or .csv.gz); standard output without it.")
def lublin(nodes: int, jobs: int, seed: int, mode: str, load: float | None, out: Path | None) -> None:
    """Make a trace by the model of Lublin and Feitelson, with the needs of [RR 5.3.2]."""
    from testbed.workload.load import scale_load
    from testbed.workload.synthetic import synthetic_trace
    from testbed.workload.table import format_table
    from testbed.workload.trace import save_trace

    made = synthetic_trace(nodes, jobs, seed, mode)
    if load is not None:
        made = scale_load(made, nodes, load)
    if out is None:
        click.echo(format_table(made), nl=False)
    else:
        save_trace(out, made)


def _segment(jobs: str | None, window: str | None, week: int | None) -> Segment:
    from testbed.workload.segments import JobRange, Week, Window

    match jobs, window, week:
        case str(text), None, None:
            return JobRange(*_pair("--jobs", text, "FIRST:COUNT", int))
        case None, str(text), None:
            return Window(*_pair("--window", text, "START:DURATION", float))
        case None, None, int(index):
            return Week(index)
    raise UserError("expected exactly one of --jobs FIRST:COUNT, --window START:DURATION, --week K")


def _pair(option: str, text: str, form: str, convert: Callable[[str], _Value]) -> tuple[_Value, _Value]:
    try:
        first, second = text.split(":")
        return convert(first), convert(second)
    except ValueError:
        raise UserError(f"{option} {text}: expected {form}, two numbers") from None


def _table(figures: dict[str, object]) -> str:
    """Return a line a figure: its name, and its value with four significant decimals where it has any."""
    width = max(map(len, figures))
    return "\n".join(f"{name:<{width}}  {_show(value)}" for name, value in figures.items() if value is not None)


def _show(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {count}" for key, count in value.items()) or "none"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
