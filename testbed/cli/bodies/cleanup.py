"""`testbed cleanup`."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import click

from testbed.cli.bodies.node import on_machines
from testbed.lab.cleanup.agents import clean_agents
from testbed.lab.cleanup.labs import clean_labs
from testbed.lab.cleanup.leftover import Leftover
from testbed.lab.remote import agents
from testbed.lab.remote.hosts import DEFAULT_FILE


def cleanup(
    *, names: tuple[str, ...], dry_run: bool, force: bool, only: str | None, path: Path | None, as_json: bool
) -> int:
    if path is not None or names:
        return on_machines(
            path or DEFAULT_FILE, names, agents.cleanup(dry_run=dry_run, force=force, only=only), as_json=as_json
        )
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
