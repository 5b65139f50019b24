"""`testbed cleanup`."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command()
@click.argument("names", nargs=-1, metavar="[NODE]…")
@click.option("--dry-run", is_flag=True, help="List what would be removed.")
@click.option("--force", is_flag=True, help="Also in labs that have a controller, or whose state is unknown.")
@click.option(
    "--abandon",
    multiple=True,
    metavar="RUN",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="End a run that waits for testbed resume; may be repeated.",
)
@click.option(
    "--only",
    type=click.Choice(["agents", "labs"]),
    default=None,
    help="Only the remains of agents, or only labs in a box.  [default: both]",
)
@click.option(
    "--hosts", "path", type=click.Path(path_type=Path, dir_okay=False), default=None,
    help="Clean up the machines of a lab over ssh: all machines of this file, or each NODE.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@deferred
def cleanup() -> None:
    """Remove the remains of killed runs and agents: guests, images, folders, control groups, incomplete labs.

    The command works on this machine, for this user; with --hosts or NODE on the machines of a lab. It keeps everything
    of a live agent, and everything in a lab with a live controller. It also keeps a run that lost its controller and
    that `testbed resume` can continue: such a run is listed, and ended with --abandon.

    Exit code 1: something is left that could not be removed, or must be kept.

    \b
    Examples:
      testbed cleanup --dry-run
      testbed cleanup
      testbed cleanup --abandon runs/2026-11-20T10-31-07-hpc2n-hour
      testbed cleanup --hosts hosts.toml n1 n2
    """  # noqa: D301  # \b keeps click from wrapping the examples
