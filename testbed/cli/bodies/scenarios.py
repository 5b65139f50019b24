"""`testbed scenarios`: lists and copies packaged scenarios, and prints the reference of scenario files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import click
from rich.table import Table

from testbed.errors import UserError, nearest
from testbed.host.whole_files import write_whole
from testbed.packaged import packaged_scenarios
from testbed.scenario import reference as pages
from testbed.scenario.schema import load_scenario
from testbed.study.report.terminal.console import wide_console


def list_scenarios(*, as_json: bool) -> None:
    found = {name: load_scenario(path) for name, path in packaged_scenarios().items()}
    if as_json:
        rows = [{"name": name, "description": each.description} for name, each in found.items()]
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table("scenario", "description", box=None, pad_edge=False)
    for name, each in found.items():
        table.add_row(name, each.description)
    wide_console().print(table)


def copy_scenario(*, force: bool, name: str, target: Path | None) -> None:
    known = packaged_scenarios()
    source = known.get(name.removesuffix(".toml"))
    if source is None:
        raise UserError(f"no packaged scenario {name!r}{nearest(name, known)}; packaged: {', '.join(known)}")
    target = Path(source.name) if target is None else target
    trace = load_scenario(source).workload.trace
    copies = {source: target} | ({} if trace is None else {trace: target.parent / trace.name})
    if len(set(copies.values())) < len(copies):
        raise UserError(f"{target}: is the name of the scenario's trace: expected a name such as {source.name}")
    _make_room(target, copies.values(), force=force)
    for original, copied in reversed(copies.items()):  # the trace first: a scenario is never without it
        try:
            if os.path.exists(copied) and copied.samefile(original):  # noqa: PTH110  # as above
                raise UserError(f"{copied}: is the packaged file itself: expected another target")
            write_whole(copied, original.read_bytes())
        except OSError as error:
            raise UserError(f"{copied}: {error.strerror}: expected a file that this user may write") from None
        click.echo(copied)


def _make_room(target: Path, copies: Iterable[Path], *, force: bool) -> None:
    """Make the folder of the target; raise `UserError` for a target that cannot be written, or is there already."""
    if os.path.isdir(target):  # noqa: PTH112  # `Path.is_dir` raises where this user may not look
        raise UserError(f"{target}: is a folder: expected the name of a file")
    for copied in () if force else copies:
        if os.path.exists(copied):  # noqa: PTH110  # as above
            raise UserError(f"{copied}: exists: expected another target, or --force")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{target}: {error.strerror}: expected a file that this user may write") from None


def reference() -> None:
    click.echo(pages.markdown(), nl=False)


def json_schema() -> None:
    click.echo(pages.json_schema(), nl=False)
