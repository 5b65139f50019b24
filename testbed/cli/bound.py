"""`testbed bound`: a lower bound on the maximum stretch of any schedule of a trace."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command(
    short_help="Compute a lower bound on the max stretch of a trace.",
    epilog="\b\nExample, the 11th week of HPC2N as [RR] cuts it:\n"
    "  testbed bound HPC2N-2002-2.2-cln.swf.gz --reading hpc2n --week 10 --nodes 120",
)
@click.argument("trace_file", metavar="TRACE", type=click.Path(path_type=Path))
@click.option("--nodes", type=int, required=True, help="Number of nodes of the cluster.")
@click.option("--tau-s", type=float, default=10.0, show_default=True, help="Threshold of the bounded stretch, seconds.")
@click.option(
    "--kind",
    type=click.Choice(["theorem1", "fluid"]),
    default="theorem1",
    show_default=True,
    help="theorem1: of [RR]; fluid: without its constraint (1d), looser; the published degradations fit it.",
)
@click.option(
    "--reading", metavar="NAME", help="Conversion of an SWF log to tasks, such as hpc2n [RR 5.3.1]; not for job tables."
)
@click.option("--week", metavar="K", type=int, help="Use only the jobs with submit time // 604800 = K.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@deferred
def bound() -> None:
    """Print a lower bound on the maximum bounded stretch of any schedule of TRACE, clairvoyant or not [RR Theorem 1].

    The bound is within a factor of 1 + accuracy_frac of the smallest maximum stretch with free migration and unlimited
    memory. The degradation from bound of a schedule is its maximum stretch over the bound. elapsed_s is the computing
    time without reading the trace; with many jobs it includes the time to load machine code.
    """
