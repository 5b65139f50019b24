"""`testbed init`: a new scenario file."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command(
    epilog="\b\nExamples:\n  testbed init my-lab.toml\n  testbed init my-lab.toml --yes --nodes 4 --trace log.swf"
)
@click.option("--driver", type=click.Choice(["process", "libvirt", "docker"]), help="Driver of the guests.")
@click.option("--nodes", type=click.IntRange(1, 1000), help="Number of nodes.")
@click.option("--cpus", type=click.FloatRange(0.05, 1024), help="CPU capacity of a node, in cores.")
@click.option("--memory-mib", type=click.IntRange(64), help="Memory of a node for guests.")
@click.option("--trace", type=click.Path(path_type=Path), help="Trace file; without it the workload is synthetic.")
@click.option("--reading", metavar="NAME", help="How an SWF log becomes tasks; job tables take none.  [default: hpc2n]")
@click.option("--yes", is_flag=True, help="Ask nothing: take the defaults for what is not given.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.argument("target", type=click.Path(path_type=Path))
@deferred
def init() -> None:
    """Write a new scenario file to TARGET. The command asks for what is not given, and proposes what this machine has.

    Exit code 0: written, and valid; 2: the file exists, or an answer is wrong.
    """
