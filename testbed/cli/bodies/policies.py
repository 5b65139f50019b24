"""`testbed policies`: lists the scheduling policies and the grammar of their names."""

from __future__ import annotations

import json

import click

from testbed.errors import UserError, nearest
from testbed.scheduling.policies.catalogue import EQUIPARTITION, GRAMMAR, available


def policies(as_json: bool, filter_text: str) -> None:
    names = [*available(), EQUIPARTITION]
    wanted = _plain(filter_text)
    found = [name for name in names if wanted in _plain(name)]
    if not found:
        raise UserError(f"no policy name contains {filter_text!r}{nearest(filter_text, names)}")
    if as_json:
        click.echo(json.dumps({"policies": found, "grammar": GRAMMAR}, indent=2))
        return
    for name in found:
        click.echo(name)
    click.echo(
        "\nNames: <on submission>[ *][/per|/stretch-per]/OPT=...[/MINVT=s|/MINFT=s][/WEIGHTS=jobs][/LEAST=jobs]"
        "[/DECAY=s][/KNOWS=cost[:s]][/MOVES=k][/NEEDS=discovered|/WITHIN=dps], suffixes in this order, or a fixed name"
    )
    width = max(map(len, GRAMMAR))
    for part, meaning in GRAMMAR.items():
        click.echo(f"  {part:<{width}}  {meaning}")


def _plain(text: str) -> str:
    return "".join(text.split()).casefold()
