"""`testbed runs`: a catalogue of run directories."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.table import Table

from testbed.errors import UserError, nearest, printable
from testbed.study.catalogue import (
    DONE,
    CataloguedRun,
    annotate,
    differences,
    find,
    prunable,
    read_catalogue,
    remove,
)
from testbed.study.report.terminal.console import wide_console

_SHORT_COMMIT = 10


def list_runs(*, folder: Path, scenario: str | None, policy: str | None, tag: str | None, as_json: bool) -> None:
    found = [
        run
        for run in read_catalogue(folder)
        if scenario in (None, run.scenario) and policy in (None, run.policy) and (tag is None or tag in run.tags)
    ]
    if as_json:
        click.echo(json.dumps([run.as_dict() for run in found], indent=2))
    else:
        _print_runs(found)


def show_run(*, folder: Path, as_json: bool, run: str) -> None:
    found = _find(folder, run)
    if as_json:
        click.echo(json.dumps(found.as_dict(), indent=2))
        return
    about = {
        "run": str(found.path), "scenario": found.scenario, "policy": found.policy, "state": found.state,
        "begun": _date(found), "jobs": str(found.jobs), "commit": found.commit or "unknown",
        "tags": ", ".join(found.tags), "note": found.note, "damage": found.damage,
        **{name: f"{value:g}" for name, value in found.metrics.items()},
    }  # fmt: skip
    width = max(map(len, about))
    for name, text in about.items():
        if text:
            click.echo(printable(f"{name:{width}}  {text}"))


def tag_run(*, folder: Path, remove: bool, run: str, tags: tuple[str, ...]) -> None:
    found = _find(folder, run)
    if "" in tags:
        raise UserError("an empty tag: expected a word")
    if unknown := [tag for tag in tags if remove and tag not in found.tags]:
        raise UserError(f"{found.name}: no tag {unknown[0]!r}; its tags: {', '.join(found.tags) or 'none'}")
    kept = set(found.tags) - set(tags) if remove else set(found.tags) | set(tags)
    annotate(found, tags=sorted(kept))
    click.echo(printable(f"{found.name}: tags {', '.join(sorted(kept)) or 'none'}"))


def note_run(*, folder: Path, run: str, text: str) -> None:
    found = _find(folder, run)
    annotate(found, note=text)
    click.echo(printable(f"{found.name}: note {'set' if text else 'removed'}"))


def diff_runs(*, folder: Path, as_json: bool, one: str, other: str) -> int:
    paths = [_find(folder, name).path for name in (one, other)]
    found = differences(*paths)
    if as_json:
        click.echo(json.dumps([{"key": key, "one": a, "other": b} for key, a, b in found], indent=2))
    else:
        table = Table("key", paths[0].name, paths[1].name, box=None, pad_edge=False)
        for row in found:
            table.add_row(*map(printable, row))
        wide_console().print(table, markup=False, highlight=False)
    return 1 if found else 0


def prune_runs(
    *, folder: Path, keep: int | None, older_than: float | None, failed: bool, yes: bool, as_json: bool
) -> None:  # fmt: skip
    if keep is None and older_than is None and not failed:
        raise UserError("which runs? expected --keep, --older-than or --failed")
    chosen = prunable(
        read_catalogue(folder), now_unix_s=time.time(), keep=keep, older_than_days=older_than, failed=failed
    )
    done, failures = [], []
    for run in chosen:
        try:
            if yes:
                remove(run)
        except UserError as error:
            failures.append(str(error))
            continue
        done.append(run)
        if not as_json:
            click.echo(printable(f"{'removed' if yes else 'would remove'} {run.path}"))
    if as_json:
        found = {"removed": yes, "runs": [str(run.path) for run in done], "failures": failures}
        click.echo(json.dumps(found, indent=2))
    if failures:
        raise UserError("; ".join(failures))
    if not as_json and chosen and not yes:
        click.echo("nothing was removed: expected --yes", err=True)


def trend_of_runs(*, folder: Path, scenario: str, policy: str | None, metric: str, as_json: bool) -> None:
    complete = [run for run in read_catalogue(folder) if run.state == DONE and run.scenario == scenario]
    if not complete:
        raise UserError(f"--scenario {scenario}: no complete run in {folder}")
    known = sorted({name for run in complete for name in run.metrics})
    if metric not in known:
        raise UserError(f"--metric {metric}: no such metric{nearest(metric, known)}; known: {', '.join(known)}")
    chosen = [run for run in complete if policy in (None, run.policy) and metric in run.metrics]
    if as_json:
        rows = [
            {"run": run.name, "policy": run.policy, "begun_unix_s": run.begun_unix_s, "commit": run.commit,
             metric: run.metrics[metric]}
            for run in chosen
        ]  # fmt: skip
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table("policy", "begun", "commit", metric, "change", box=None, pad_edge=False)
    last: dict[str, float] = {}
    for run in sorted(chosen, key=lambda run: run.policy):
        value, before = run.metrics[metric], last.get(run.policy)
        change = f"{value / before - 1.0:+.1%}" if before else ""
        last[run.policy] = value
        table.add_row(printable(run.policy), _date(run), run.commit[:_SHORT_COMMIT], f"{value:g}", change)
    wide_console().print(table, markup=False, highlight=False)


def _find(folder: Path, text: str) -> CataloguedRun:
    return find(read_catalogue(folder) if folder.is_dir() else [], text)


def _print_runs(found: Sequence[CataloguedRun]) -> None:
    table = Table(
        "run", "policy", "state", "jobs", "mean stretch", "max stretch", "tags", "note", box=None, pad_edge=False
    )
    for run in found:
        stretches = [run.metrics.get(name) for name in ("mean_stretch", "max_stretch")]
        cells = (
            run.name, run.policy, run.state, str(run.jobs),
            *("" if value is None else f"{value:.2f}" for value in stretches), ", ".join(run.tags), run.note,
        )  # fmt: skip
        table.add_row(*map(printable, cells))
    wide_console().print(table, markup=False, highlight=False)
    for run in found:
        if run.damage:
            click.echo(printable(f"{run.path}: {run.damage}"), err=True)


def _date(run: CataloguedRun) -> str:
    if run.begun_unix_s is None:
        return "unknown"
    return datetime.fromtimestamp(run.begun_unix_s, UTC).strftime("%Y-%m-%d %H:%M")
