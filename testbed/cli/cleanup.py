"""`testbed cleanup`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from testbed.lab.cleanup.leftover import Leftover


@click.command()
@click.argument("names", nargs=-1, metavar="[NODE]…")
@click.option("--dry-run", is_flag=True, help="List what would be removed.")
@click.option("--force", is_flag=True, help="Also in labs that somebody drives, or of which nobody can tell.")
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
def cleanup(
    *, names: tuple[str, ...], dry_run: bool, force: bool, only: str | None, path: Path | None, as_json: bool
) -> int:
    """Remove what dead runs and killed agents left: guests, images, folders, control groups, half-made labs.

    On this machine, of this user; with --hosts or NODE on the lab's machines. What a live agent has, and what is in
    a lab that somebody drives, stays. Exit code 1 if something is left that could not be removed.

    \b
    Examples:
      testbed cleanup --dry-run
      testbed cleanup
      testbed cleanup --hosts hosts.toml n1 n2
    """  # noqa: D301  # \b keeps click from wrapping the examples
    import asyncio  # noqa: PLC0415  # --help stays quick
    import json  # noqa: PLC0415  # as above
    from dataclasses import asdict  # noqa: PLC0415  # as above

    if path is not None or names:
        from testbed.cli.node import on_machines  # noqa: PLC0415  # --help stays quick
        from testbed.lab.remote import agents  # noqa: PLC0415  # as above
        from testbed.lab.remote.hosts import DEFAULT_FILE  # noqa: PLC0415  # as above

        return on_machines(
            path or DEFAULT_FILE, names, agents.cleanup(dry_run=dry_run, force=force, only=only), as_json=as_json
        )
    from testbed.lab.cleanup.agents import clean_agents  # noqa: PLC0415  # --help stays quick
    from testbed.lab.cleanup.labs import clean_labs  # noqa: PLC0415  # as above

    found = [] if only == "labs" else asyncio.run(clean_agents(dry_run=dry_run, force=force))
    if only != "agents":
        found += clean_labs(dry_run=dry_run, say=lambda line: click.echo(line, err=True))
    if as_json:
        click.echo(json.dumps({"dry_run": dry_run, "found": [asdict(each) for each in found]}, indent=2))
    else:
        for each in found:
            click.echo(_told(each, dry_run=dry_run))
        if not found:
            click.echo("nothing is left of dead runs")
    return 1 if any(each.kept for each in found) else 0


def _told(each: Leftover, *, dry_run: bool) -> str:
    if each.kept:
        return f"kept: {each.what} of {each.of}: {each.kept}"
    return f"{'would remove' if dry_run else 'removed'}: {each.what} of {each.of}"
