"""`testbed simulate`: a trace in virtual time under one or more policies."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command(
    short_help="Simulate a trace under one or more policies.",
    epilog="\b\nExamples:\n"
    "  testbed trace generate lublin --nodes 128 --jobs 1000 --seed 1 -o trace.csv\n"
    '  testbed simulate trace.csv --nodes 128 --policy "GreedyPM */per/OPT=MIN/MINVT=600" --policy EASY\n'
    "  testbed simulate trace.csv --nodes 128 --policy EASY --overheads calibration.toml#extrapolate\n"
    '  testbed simulate trace.csv --nodes 128 --policy "GreedyPM */OPT=MIN/WITHIN=dps" --imbalance 1/i\n'
    "  testbed simulate KTH-SP2-1996.swf.gz --reading processors --nodes 100 --policy FCFS --jobs-out out",
)
@click.argument("trace_file", metavar="TRACE", type=click.Path(path_type=Path))
@click.option("--nodes", type=int, required=True, help="Number of nodes; with the reading processors, of processors.")
@click.option(
    "--policy",
    "names",
    metavar="NAME",
    multiple=True,
    required=True,
    help="Name of a policy; repeat the option to compare policies.",
)
@click.option("--period-s", type=float, default=600.0, show_default=True, help="Period of periodic policies.")
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
    help="Lower bound on the max stretch for the degradation from bound; fluid: without constraint (1d) of [RR].",
)
@click.option("--tau-s", type=float, default=10.0, show_default=True, help="Threshold of the bounded stretch, seconds.")
@click.option(
    "--node-memory-gb",
    type=float,
    help="Memory of a node in 1e9 bytes, for bandwidths and overheads.  [default: 8, as 1 TB on 128 nodes in [RR 5.1]]",
)
@click.option("--reading", metavar="NAME", help="Conversion of an SWF log to tasks, such as hpc2n; not for job tables.")
@click.option("--week", metavar="K", type=int, help="Use only the jobs with submit time // 604800 = K.")
@click.option(
    "--imbalance",
    type=click.Choice(["uniform", "1/i"]),
    default="uniform",
    show_default=True,
    help="Work of the tasks of a job, for DPS/… and …/WITHIN=dps; 1/i: task i has 1/i of the work of task 1.",
)
@click.option(
    "--jobs-out", metavar="DIR", type=click.Path(path_type=Path), help="Write DIR/<policy>.csv with one row per job."
)
@click.option(
    "--compile/--no-compile",
    "compile_kernels",
    default=None,
    help="Whether to compile missing kernels, which takes minutes, once.  [default: if that saves time]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: policy, measure, value.")
@click.option(
    "--debug-invariants",
    is_flag=True,
    help="Check the invariants of every decision: memory, CPU, mappings, yields, completions.",
)
@deferred
def simulate() -> None:
    """Simulate TRACE on identical nodes under each policy, and print one row of measures per policy.

    \b
    stretch           bounded stretch, with the threshold --tau-s
    degradation       the max stretch over the lower bound on the max stretch of any schedule
    underutilization  CPU that was needed and available but not used, over the work of the trace
    preemptions, migrations  number of jobs; for the bandwidth every task is written and read once
    rates             per time between the first submission and the last completion
    decision times    wall time; missing if the policy never decided

    Overheads from a file are seconds of the lab's clock; the simulation has time scale 1, so they are seconds of the
    trace as well. Kernels that are not compiled give the same decisions, about a hundred times slower.
    """  # noqa: D301  # \b keeps click from wrapping the table
