"""`testbed simulate`: a trace in virtual time under one or more policies."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command(
    short_help="Replay a trace in virtual time under policies.",
    epilog="\b\nExamples:\n"
    "  testbed trace generate lublin --nodes 128 --jobs 1000 --seed 1 -o trace.csv\n"
    '  testbed simulate trace.csv --nodes 128 --policy "GreedyPM */per/OPT=MIN/MINVT=600" --policy EASY\n'
    "  testbed simulate trace.csv --nodes 128 --policy EASY --policy DYNMCB8-PER --overheads calibration.toml\n"
    '  testbed simulate trace.csv --nodes 128 --policy "GreedyPM */OPT=MIN/WITHIN=dps" --imbalance 1/i\n'
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
@click.option(
    "--imbalance",
    type=click.Choice(["uniform", "1/i"]),
    default="uniform",
    show_default=True,
    help="Work of the tasks of a job, for DPS/… and …/WITHIN=dps; 1/i: the i-th has a part 1/i of the first's.",
)
@click.option("--jobs-out", metavar="DIR", type=click.Path(path_type=Path), help="Write DIR/<policy>.csv, a row a job.")
@click.option(
    "--compile/--no-compile",
    "compile_kernels",
    default=None,
    help="Whether kernels are compiled that never were; it takes minutes, once.  [default: if the work is done sooner]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: policy, measure, value.")
@click.option("--debug-invariants", is_flag=True, help="Check every decision: memory, CPU, maps, yields, ends.")
@deferred
def simulate() -> None:
    """Replay TRACE in virtual time on identical nodes under each policy, and print what came of it.

    Stretches are bounded (--tau-s); degradation is the max stretch over the lower bound of any schedule;
    underutilization is CPU that was wanted and there, but not used, over the work of the trace. Preemptions and
    migrations count jobs; for their bandwidth every task is written and read once. Rates are over the makespan, from
    the first submission to the last completion. Overheads of a file are seconds of a lab's clock: here, at time scale
    1, of the trace as well. Times to decide are wall time, and only there if a policy was asked;
    kernels that are not compiled decide the same, some hundred times slower.
    """
