"""`testbed cleanup`: removes the remains of dead agents, lost runs and labs."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import click

from testbed.cli.bodies.node import on_machines
from testbed.errors import UserError
from testbed.lab.cleanup.agents import clean_agents
from testbed.lab.cleanup.labs import clean_labs
from testbed.lab.cleanup.leftover import Leftover
from testbed.lab.cleanup.lost_runs import abandon as end_run
from testbed.lab.cleanup.lost_runs import clean_lost_runs
from testbed.lab.remote import agents
from testbed.lab.remote.hosts import DEFAULT_FILE


def cleanup(
    *, names: tuple[str, ...], dry_run: bool, force: bool, only: str | None, path: Path | None,
    abandon: tuple[Path, ...], as_json: bool,
) -> int:  # fmt: skip
    on_others = path is not None or bool(names)
    if abandon and (on_others or only == "labs"):
        raise UserError("--abandon: ends runs of this machine: expected it without --hosts, NODE and --only labs")
    if on_others:
        return on_machines(
            path or DEFAULT_FILE, names, agents.cleanup(dry_run=dry_run, force=force, only=only), as_json=as_json
        )
    found = [] if only == "labs" else _clean_agents(abandon, dry_run=dry_run, force=force)
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


def _clean_agents(abandoned: tuple[Path, ...], *, dry_run: bool, force: bool) -> list[Leftover]:
    """Remove the remains of agents. Lost runs come first, so that their agents are handled like other dead agents."""
    for run in abandoned:
        end_run(run, dry_run=dry_run)

    async def clean() -> list[Leftover]:
        found = await clean_lost_runs(abandoned, dry_run=dry_run)
        return found + await clean_agents(dry_run=dry_run, force=force)

    return asyncio.run(clean())


def _told(each: Leftover, *, dry_run: bool) -> str:
    if each.kept:
        return f"kept: {each.what} of {each.of}: {each.kept}"
    return f"{'would remove' if dry_run else 'removed'}: {each.what} of {each.of}"
