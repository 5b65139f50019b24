"""`testbed cleanup`."""

from __future__ import annotations

from pathlib import Path

import click

from testbed.cli.deferred import deferred


@click.command()
@click.argument("names", nargs=-1, metavar="[NODE]…")
@click.option("--dry-run", is_flag=True, help="List what would be removed.")
@click.option("--force", is_flag=True, help="Also in labs that somebody drives, or of which nobody can tell.")
@click.option(
    "--abandon",
    multiple=True,
    metavar="RUN",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="End a run that waits to be resumed; may be given several times.",
)
@click.option(
    "--only",
    type=click.Choice(["agents", "labs"]),
    default=None,
    help="What agents left, or labs in a box.  [default: both]",
)
@click.option(
    "--hosts", "path", type=click.Path(path_type=Path, dir_okay=False), default=None,
    help="On the machines of a lab, over ssh: all of this file, or each NODE.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@deferred
def cleanup() -> None:
    """Remove what dead runs and killed agents left: guests, images, folders, control groups, half-made labs.

    On this machine, of this user; with --hosts or NODE on the lab's machines. What a live agent has, and what is in
    a lab that somebody drives, stays. So does a run whose controller was lost, and that `testbed resume` can go on
    with: it is listed, and ends with --abandon. Exit code 1 if something is left that could not be removed, or may not
    be.

    \b
    Examples:
      testbed cleanup --dry-run
      testbed cleanup
      testbed cleanup --abandon runs/2026-11-20T10-31-07-hpc2n-hour
      testbed cleanup --hosts hosts.toml n1 n2
    """  # noqa: D301  # \b keeps click from wrapping the examples
