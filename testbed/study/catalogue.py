"""The catalogue of a folder of runs: read from the run directories each time, so it has no file that could be old."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from testbed.errors import UserError
from testbed.host.whole_files import write_whole

NOTES_FILE: Final = "notes.json"
_DAY_S = 86400.0
UNFINISHED, DONE, FAILED = "unfinished", "done", "failed"


@dataclass(frozen=True, slots=True)
class CataloguedRun:
    """One run: `begun_unix_s` is the begin of its replay, `metrics` are from its summary, empty if there is none."""

    path: Path
    scenario: str
    policy: str
    state: str
    begun_unix_s: float
    jobs: int
    commit: str
    metrics: Mapping[str, float]
    tags: tuple[str, ...]
    note: str

    @property
    def name(self) -> str:
        """The name of the run directory."""
        return self.path.name

    def as_dict(self) -> dict[str, Any]:
        """Return the run as data for JSON."""
        return {
            "run": self.name, "path": str(self.path), "scenario": self.scenario, "policy": self.policy,
            "state": self.state, "begun_unix_s": self.begun_unix_s, "jobs": self.jobs, "commit": self.commit,
            "metrics": dict(self.metrics), "tags": list(self.tags), "note": self.note,
        }  # fmt: skip


def read_catalogue(folder: Path) -> list[CataloguedRun]:
    """Return the runs of a folder and of two levels below it, the oldest first; a run is a folder with a manifest."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder: expected a folder of runs, such as runs")
    found = [run for path in _manifests(folder) if (run := read_run(path.parent)) is not None]
    return sorted(found, key=lambda run: (run.begun_unix_s, run.name))


def _manifests(folder: Path) -> Iterator[Path]:
    yield from folder.glob("manifest.json")
    yield from folder.glob("*/manifest.json")
    yield from folder.glob("*/*/manifest.json")


def read_run(path: Path) -> CataloguedRun | None:
    """Return the run in a directory, None if there is no readable manifest."""
    manifest, summary, notes = (_data(path / name) for name in ("manifest.json", "summary.json", NOTES_FILE))
    scenario = manifest.get("scenario")
    if not isinstance(scenario, dict):
        return None
    state = UNFINISHED
    if summary:
        state = DONE if summary.get("complete") and not summary.get("failed") else FAILED
    clocks = manifest.get("clocks")
    begun_ns = clocks.get("anchor_unix_ns", 0) if isinstance(clocks, dict) else 0
    source = manifest.get("source")
    return CataloguedRun(
        path=path, scenario=str(scenario.get("name", "")), policy=str(manifest.get("policy", "")), state=state,
        begun_unix_s=float(begun_ns) / 1e9, jobs=int(summary.get("jobs", 0)),
        commit=str(source.get("commit") or "") if isinstance(source, dict) else "", metrics=_metrics(summary),
        tags=tuple(map(str, notes.get("tags", ()))), note=str(notes.get("note", "")),
    )  # fmt: skip


def _metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    found = summary.get("metrics")
    values = {} if not isinstance(found, dict) else {name: each.get("value") for name, each in found.items()}
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


def _data(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def annotate(run: CataloguedRun, *, tags: Sequence[str] | None = None, note: str | None = None) -> None:
    """Write the tags and the note of a run into its directory; None keeps the present value."""
    kept = {
        "tags": list(run.tags) if tags is None else sorted(set(tags)), "note": run.note if note is None else note
    }  # fmt: skip
    try:
        write_whole(run.path / NOTES_FILE, json.dumps(kept, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"{run.path / NOTES_FILE}: cannot write: {error.strerror}") from error


def differences(one: Path, other: Path) -> list[tuple[str, str, str]]:
    """Return the keys whose values differ in the manifests and summaries of two runs, with both values as text."""
    found = []
    for name in ("manifest.json", "summary.json"):
        values = [dict(_flat(_data(path / name), ())) for path in (one, other)]
        for key in sorted(values[0].keys() | values[1].keys()):
            texts = [json.dumps(each[key]) if key in each else "" for each in values]
            if texts[0] != texts[1]:
                found.append((f"{name.removesuffix('.json')}: {key}", texts[0], texts[1]))
    return found


def _flat(value: Any, steps: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _flat(each, (*steps, str(name)))
    elif isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        for index, each in enumerate(value):
            yield from _flat(each, (*steps, str(index)))
    else:
        yield ".".join(steps), value


def prunable(
    runs: Sequence[CataloguedRun], *, now_unix_s: float, keep: int | None, older_than_days: float | None,
    failed: bool,
) -> list[CataloguedRun]:  # fmt: skip
    """Return the runs that pruning removes: no tagged run and no unfinished run, which may still be running.

    The `keep` newest runs of each scenario and policy stay, and so do runs that are not older than `older_than_days`.
    With `failed`, only failed runs are removed.
    """
    groups: dict[tuple[str, str], list[CataloguedRun]] = {}
    for run in runs:
        groups.setdefault((run.scenario, run.policy), []).append(run)
    newest = {run.path for group in groups.values() for run in group[max(len(group) - (keep or 0), 0) :]}
    return [
        run
        for run in runs
        if not run.tags
        and run.state != UNFINISHED
        and run.path not in newest
        and (older_than_days is None or now_unix_s - run.begun_unix_s > older_than_days * _DAY_S)
        and (not failed or run.state == FAILED)
    ]


def remove(run: CataloguedRun) -> None:
    """Remove a run directory; raises `UserError`."""
    try:
        shutil.rmtree(run.path)
    except OSError as error:
        raise UserError(f"{run.path}: cannot remove: {error.strerror}") from error


def find(runs: Sequence[CataloguedRun], text: str) -> CataloguedRun:
    """Return the run for a path, a name, or the unique beginning of a name; raises `UserError`."""
    path = Path(text)
    if (path / "manifest.json").is_file() and (run := read_run(path)) is not None:
        return run
    chosen = [run for run in runs if run.name == text] or [run for run in runs if run.name.startswith(text)]
    if len(chosen) == 1:
        return chosen[0]
    what = "no run" if not chosen else f"{len(chosen)} runs, such as {chosen[0].name} and {chosen[1].name},"
    raise UserError(f"{text}: {what} of that name: expected a path, a name, or the unique beginning of a name")
