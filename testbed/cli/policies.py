"""`testbed policies`: which policies there are, and how their names are made."""

from __future__ import annotations

import json

import click


@click.command(epilog="\b\nExample:\n  testbed policies greedypm")
@click.option("--json", "as_json", is_flag=True, help="Print names and grammar as JSON.")
@click.argument("filter_text", metavar="[FILTER]", default="")
def policies(as_json: bool, filter_text: str) -> None:
    """List policies whose names contain FILTER (case and spaces do not matter), and the parts of a name."""
    # numpy comes with the catalogue: not for those who only want --help
    from testbed.errors import UserError, nearest  # noqa: PLC0415  # --help stays quick
    from testbed.scheduling.policies.catalogue import EQUIPARTITION, GRAMMAR, available  # noqa: PLC0415  # --help stays quick

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
    click.echo("\nNames: <on submission>[ *][/per|/stretch-per]/OPT=...[/MINVT=s|/MINFT=s], or a fixed name")
    width = max(map(len, GRAMMAR))
    for part, meaning in GRAMMAR.items():
        click.echo(f"  {part:<{width}}  {meaning}")


def _plain(text: str) -> str:
    return "".join(text.split()).casefold()
