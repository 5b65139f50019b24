"""`testbed bound`: the maximum stretch that no schedule of a trace can beat."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


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
@deferred
def bound() -> None:
    """Print a lower bound on the maximum bounded stretch of any schedule of TRACE, clairvoyant or not [RR Theorem 1].

    It is within a factor of 1 + accuracy_frac of the least maximum stretch with free moves and unlimited memory. A
    schedule's degradation from bound is its maximum stretch over this. elapsed_s is the time that the bound took,
    without reading the trace; with many jobs it holds the loading of machine code.
    """
