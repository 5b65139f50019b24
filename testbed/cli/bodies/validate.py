"""`testbed validate`: prints all errors of a scenario file."""

from __future__ import annotations

import json
from pathlib import Path

import click

from testbed.control.validation import validate as find_errors
from testbed.errors import printable
from testbed.packaged import find_scenario


def validate(*, as_json: bool, scenario: Path) -> int:
    path = find_scenario(scenario)
    found = find_errors(path)
    if as_json:
        errors = [{"line": each.line or None, "error": each.text} for each in found]
        click.echo(json.dumps({"file": str(path), "valid": not found, "errors": errors}, indent=2))
    else:
        for each in found:
            click.echo(printable(f"{path}:{each.line}: {each.text}" if each.line else f"{path}: {each.text}"))
        if not found:
            click.echo(f"{path}: valid")
    return 2 if found else 0
