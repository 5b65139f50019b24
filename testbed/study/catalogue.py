"""The catalogue of a folder of runs: read from the run directories each time, so it has no file that could be old."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Final

from testbed.errors import FailureCode, UserError
from testbed.host.whole_files import write_whole
from testbed.measure.run_lock import FILE as LOCK_FILE
from testbed.measure.run_lock import RunLock

NOTES_FILE: Final = "notes.json"
_DAY_S = 86400.0
_OF_ONE_RUN = re.compile(r"(run|run_tag)$|clocks\.")  # keys that identify one run
UNFINISHED, DONE, FAILED = "unfinished", "done", "failed"


@dataclass(frozen=True, slots=True)
class CataloguedRun:
    """One run: `begun_unix_s` is the begin of its replay, `metrics` are from its summary, empty if there is none.

    `damage` describes what cannot be read in its manifest, summary or notes; such a run is never pruned.
    """

    path: Path
    scenario: str
    policy: str
    state: str
    begun_unix_s: float | None
    jobs: int
    commit: str
    metrics: Mapping[str, float]
    tags: tuple[str, ...]
    note: str
    damage: str = ""

    @property
    def name(self) -> str:
        """The name of the run directory."""
        return self.path.name

    def as_dict(self) -> dict[str, Any]:
        """Return the run as data for JSON."""
        return {
            "run": self.name, "path": str(self.path), "scenario": self.scenario, "policy": self.policy,
            "state": self.state, "begun_unix_s": self.begun_unix_s, "jobs": self.jobs, "commit": self.commit,
            "metrics": dict(self.metrics), "tags": list(self.tags), "note": self.note, "damage": self.damage,
        }  # fmt: skip


def read_catalogue(folder: Path) -> list[CataloguedRun]:
    """Return the runs of a folder and of two levels below it, the oldest first; a run is a folder with a manifest."""
    if not os.path.isdir(folder):  # noqa: PTH112  # `Path.is_dir` raises where this user may not look
        raise UserError(f"{folder}: no such folder: expected a folder of runs, such as runs")
    found = [run for path in _manifests(folder) if (run := read_run(path.parent)) is not None]
    return sorted(found, key=lambda run: (run.begun_unix_s or 0.0, run.name))


def _manifests(folder: Path) -> Iterator[Path]:
    """Yield the manifests of runs; folders that are symbolic links lead to runs that are listed elsewhere."""
    for path in (*folder.glob("manifest.json"), *folder.glob("*/manifest.json"), *folder.glob("*/*/manifest.json")):
        between = [each for each in path.parents if folder in each.parents]
        if not any(each.is_symlink() for each in between):
            yield path


def read_run(path: Path) -> CataloguedRun | None:
    """Return the run in a directory, None if there is no readable manifest."""
    manifest = _data(path / "manifest.json")
    scenario = manifest.get("scenario") if manifest else None
    if manifest is None or not isinstance(scenario, dict):
        return None
    summary, notes = _data(path / "summary.json"), _data(path / NOTES_FILE)
    damage = [
        f"{name} cannot be read" for name, data in (("summary.json", summary), (NOTES_FILE, notes)) if data is None
    ]
    clocks, source = manifest.get("clocks"), manifest.get("source")
    begun_ns = _number(clocks.get("anchor_unix_ns")) if isinstance(clocks, dict) else None
    if begun_ns is None:
        damage.append("manifest.json has no clocks.anchor_unix_ns")
    tags = (notes or {}).get("tags", [])
    if not isinstance(tags, list):
        damage.append(f"{NOTES_FILE}: tags is no list")
    return CataloguedRun(
        path=path, scenario=str(scenario.get("name", "")), policy=str(manifest.get("policy", "")),
        state=_state(summary or {}), begun_unix_s=None if begun_ns is None else begun_ns / 1e9,
        jobs=int(_number((summary or {}).get("jobs")) or 0),
        commit=str(source.get("commit") or "") if isinstance(source, dict) else "", metrics=_metrics(summary or {}),
        tags=tuple(map(str, tags)) if isinstance(tags, list) else (), note=str((notes or {}).get("note", "")),
        damage="; ".join(damage),
    )  # fmt: skip


def _state(summary: Mapping[str, Any]) -> str:
    """Return the state by a summary, empty if there is none; jobs that users deleted have not failed."""
    if not summary:
        return UNFINISHED
    failed, codes = summary.get("failed"), summary.get("failure_codes")
    codes = codes if isinstance(codes, dict) else {}
    failures = [job for job in failed if codes.get(job) != FailureCode.DELETED] if isinstance(failed, dict) else []
    return DONE if summary.get("complete") and not failures else FAILED


def _metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    found = summary.get("metrics")
    values = {name: each.get("value") for name, each in _items(found) if isinstance(each, dict)}
    return {name: number for name, value in values.items() if (number := _number(value)) is not None}


def _items(value: object) -> Iterator[tuple[str, Any]]:
    yield from value.items() if isinstance(value, dict) else ()


def _number(value: object) -> float | None:
    """Return a finite number, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return None
    return float(value)


def _data(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file: empty if there is no such file, None if it cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def annotate(run: CataloguedRun, *, tags: Sequence[str] | None = None, note: str | None = None) -> None:
    """Write the tags and the note of a run into its directory; None keeps the present value. Raises `UserError`."""
    if NOTES_FILE in run.damage:
        raise UserError(
            f"{run.path / NOTES_FILE}: cannot be read: expected tags and note as JSON; remove the file to begin again"
        )
    kept = {
        "tags": list(run.tags) if tags is None else sorted(set(tags)), "note": run.note if note is None else note
    }  # fmt: skip
    try:
        write_whole(run.path / NOTES_FILE, json.dumps(kept, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"{run.path / NOTES_FILE}: cannot write: {error.strerror}") from error


def differences(one: Path, other: Path) -> list[tuple[str, str, str]]:
    """Return the keys whose values differ in the manifests and summaries of two runs, with both values as text.

    Keys that identify one run, such as its name and the times of its clocks, are left out.
    """
    found = []
    for name in ("manifest.json", "summary.json"):
        values = [dict(_flat(_data(path / name) or {}, ())) for path in (one, other)]
        for key in sorted(key for key in values[0].keys() | values[1].keys() if not _OF_ONE_RUN.match(key)):
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
    """Return the runs that pruning removes.

    Runs with tags, unfinished runs, which may still be in progress, and damaged runs always stay. So do the `keep`
    newest runs of each scenario and policy that are done (with `failed`: that failed), and runs that are not older than
    `older_than_days`. With `failed`, only failed runs are removed.
    """
    kind = FAILED if failed else DONE
    groups: dict[tuple[str, str], list[CataloguedRun]] = {}
    for run in runs:
        if run.state == kind:
            groups.setdefault((run.scenario, run.policy), []).append(run)
    newest = {run.path for group in groups.values() for run in group[max(len(group) - (keep or 0), 0) :]}
    return [
        run
        for run in runs
        if not run.tags
        and not run.damage
        and run.state != UNFINISHED
        and run.path not in newest
        and (older_than_days is None or _age_s(run, now_unix_s) > older_than_days * _DAY_S)
        and (not failed or run.state == FAILED)
    ]


def _age_s(run: CataloguedRun, now_unix_s: float) -> float:
    return 0.0 if run.begun_unix_s is None else now_unix_s - run.begun_unix_s


def remove(run: CataloguedRun) -> None:
    """Remove a run directory; raises `UserError` if a process drives the run, or if the directory cannot be removed.

    The manifest is removed last, so that an interrupted removal can be repeated.
    """
    try:
        lock = RunLock(run.path)
        try:
            for path in sorted(run.path.iterdir(), key=lambda path: path.name in {"manifest.json", "summary.json"}):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.name != LOCK_FILE:
                    path.unlink()
        finally:
            lock.release()
        run.path.rmdir()
    except OSError as error:
        raise UserError(f"{run.path}: cannot remove: {error.strerror}") from error


def find(runs: Sequence[CataloguedRun], text: str) -> CataloguedRun:
    """Return the run for a path, a name, or the unique beginning of a name; raises `UserError`."""
    path = Path(text)
    is_run = os.path.isfile(path / "manifest.json")  # noqa: PTH113  # as above
    if is_run and (run := read_run(path)) is not None:
        return run
    chosen = [run for run in runs if run.name == text] or [run for run in runs if run.name.startswith(text)]
    if len(chosen) == 1:
        return chosen[0]
    what = "no run" if not chosen else f"{len(chosen)} runs, such as {chosen[0].name} and {chosen[1].name},"
    raise UserError(f"{text}: {what} of that name: expected a path, a name, or the unique beginning of a name")
