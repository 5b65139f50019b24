"""The run directory: the truth about a run, append-only while it lasts, atomic at its ends."""

from __future__ import annotations

import contextlib
import csv
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from testbed.errors import RunError, UserError
from testbed.measure.points import Value, to_line
from testbed.measure.recorders import Recorders

JOB_COLUMNS = (
    "job_id", "submit_time_s", "tasks", "cpu_need_frac", "mem_req_frac", "run_time_s", "start_time_s", "end_time_s",
    "stretch", "virtual_time_s", "preemptions", "migrations", "penalty_s", "bytes_moved",
    "live_migrations",
)  # fmt: skip


def _write_atomically(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


class RunDirectory:
    """Writes one run. Journal lines reach the file at once, so that a killed controller loses none.

    `journal` entries carry `t_s`, seconds by the controller's monotonic clock since the run began, and `kind`.
    `recorders` are told what was written, after it was.
    """

    def __init__(self, path: Path, tags: Mapping[str, str], recorders: Recorders | None = None) -> None:
        self.path = path
        self.recorders = recorders or Recorders()
        self._tags = dict(tags)
        self._events: IO[str] | None = None
        self._points: IO[str] | None = None

    def open(self) -> None:
        """Create the directory, which must not be there yet, and its files."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.mkdir()
            self._events = (self.path / "events.jsonl").open("x", encoding="utf-8", buffering=1)
            self._points = (self.path / "points.lp").open("x", encoding="utf-8", buffering=1 << 16)
        except OSError as error:
            self.close()
            raise UserError(f"{self.path}: cannot create the run directory: {error.strerror}") from error

    def close(self) -> None:
        """Make the journal and the points durable, and close them; a second call does nothing."""
        for file in (self._events, self._points):
            if file is not None and not file.closed:
                with contextlib.suppress(OSError), file:
                    file.flush()
                    os.fsync(file.fileno())

    def journal(self, t_s: float, kind: str, entry: Mapping[str, object]) -> None:
        """Append one entry to events.jsonl."""
        if self._events is None:
            raise RunError(f"{self.path}: the journal is not open")
        line = json.dumps({"t_s": round(t_s, 6), "kind": kind, **entry}, allow_nan=False, separators=(",", ":"))
        try:
            self._events.write(line + "\n")
        except OSError as error:
            raise RunError(f"{self.path / 'events.jsonl'}: cannot write: {error.strerror}") from error
        self.recorders.journal(line)

    def point(self, measurement: str, tags: Mapping[str, str], fields: Mapping[str, Value], time_ns: int) -> None:
        """Append one point, tagged with the run."""
        if self._points is None:
            raise RunError(f"{self.path}: the points file is not open")
        tags = {**self._tags, **tags}
        line = to_line(measurement, tags, fields, time_ns)
        try:
            self._points.write(line + "\n")
        except OSError as error:
            raise RunError(f"{self.path / 'points.lp'}: cannot write: {error.strerror}") from error
        self.recorders.point(measurement, tags, fields, time_ns)

    def write_manifest(self, manifest: Mapping[str, object]) -> None:
        """Write manifest.json."""
        text = json.dumps(manifest, indent=2, allow_nan=False)
        _write_atomically(self.path / "manifest.json", text + "\n")
        self.recorders.open(self.path, text)

    def write_summary(self, summary: Mapping[str, object]) -> None:
        """Write summary.json."""
        _write_atomically(self.path / "summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")

    def write_jobs(self, rows: Iterable[Sequence[object]]) -> None:
        """Write jobs.csv, a row in the order of `JOB_COLUMNS`; None is an empty cell."""
        part = self.path / "jobs.csv.part"
        with part.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(JOB_COLUMNS)
            writer.writerows(rows)
        part.replace(self.path / "jobs.csv")


def read_json(path: Path) -> dict[str, object]:
    """Read manifest.json or summary.json, or raise `UserError` that says which is missing or broken."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}; expected a file of a run directory") from error
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def read_journal(path: Path) -> list[dict[str, object]]:
    """Read events.jsonl; a last line that was cut off by a crash is left out."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}; expected the journal of a run") from error
    entries: list[dict[str, object]] = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            entries.append(json.loads(line))
        except ValueError as error:
            if number == len(lines):
                break
            raise UserError(f"{path}:{number}: not JSON: {error}") from error
    return entries
