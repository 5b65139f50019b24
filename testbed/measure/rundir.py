"""The run directory: the truth about a run, append-only while it lasts, atomic at its ends.

The journal's lines reach the kernel one by one, so that a killed controller loses none; above all an intent, which is
there before its act. Only the machine's loss of power could take the last second of the journal, and of the points,
with it: an intent is not made durable by itself. Its guests on this machine are lost with it, and on other nodes agents
destroy theirs when nobody renews the lease, intent or not; but every operation would wait for the disk (milliseconds,
and many while images are being saved), which is what the run is to measure.

When a file of the directory cannot be written (no space left, a broken disk), nothing is measured any more, and
whoever runs this is told once. Clean-up goes on: `journal` and `point` do not raise then. A reserve of space, freed by
`begin_results`, leaves room for the journal's end and the results of what was measured.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from testbed.errors import RunError, UserError
from testbed.measure.append_file import AppendFile
from testbed.measure.points import Value, to_line
from testbed.measure.recorders import Recorders
from testbed.measure.schema import MEASUREMENTS
from testbed.measure.spool import SEGMENT_BYTES, Spool
from testbed.run.events import Event
from testbed.run.journal import encode

RESERVE_BYTES = 1 << 20
_STATES = frozenset(measurement.name for measurement in MEASUREMENTS.values() if measurement.state)

JOB_COLUMNS = (
    "job_id", "submit_time_s", "tasks", "cpu_need_frac", "mem_req_frac", "run_time_s", "start_time_s", "end_time_s",
    "stretch", "virtual_time_s", "preemptions", "migrations", "penalty_s", "bytes_moved",
    "live_migrations",
)  # fmt: skip


class RunDirectory:
    """Writes one run.

    `recorders` are told what was written, after it was. `on_failure` may be set; it is called once, in any thread,
    when a file cannot be written.
    """

    def __init__(
        self, path: Path, tags: Mapping[str, str], recorders: Recorders | None = None,
        *, segment_bytes: int = SEGMENT_BYTES,
    ) -> None:  # fmt: skip
        self.path = path
        self.recorders = recorders or Recorders()
        self.on_failure: Callable[[RunError], None] = lambda _failure: None
        self._tags = dict(tags)
        self._segment_bytes = segment_bytes
        self._events: AppendFile | None = None
        self._points: Spool | None = None
        self._entries = 0
        self._entries_lost = 0
        self._ending = False
        self._parents: list[Path] = []  # made for this run, the innermost first

    def open(self) -> None:
        """Create the directory, which must not be there yet, and its files."""
        made = False
        try:
            self._parents = [parent for parent in self.path.absolute().parents if not parent.exists()]
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.mkdir()
            made = True
            with (self.path / ".reserve").open("xb") as reserve:
                os.posix_fallocate(reserve.fileno(), 0, RESERVE_BYTES)
            self._events = AppendFile(self.path / "events.jsonl")
            self._points = Spool(
                self.path,
                beside=[self._events],
                on_failure=self._tell,
                segment_bytes=self._segment_bytes,
            )
        except OSError as error:
            self.discard(made=made)
            raise UserError(f"{self.path}: cannot create the run directory: {error.strerror}") from error

    def discard(self, *, made: bool = True) -> None:
        """Close the directory and remove it, with the folders above it that were made for it and hold nothing else."""
        self.close()
        if made:
            shutil.rmtree(self.path, ignore_errors=True)
        for parent in self._parents:
            with contextlib.suppress(OSError):
                parent.rmdir()

    @property
    def failure(self) -> RunError | None:
        """Why nothing is measured any more, if so; it names the file and the reason."""
        return None if self._points is None else self._points.failure

    def kept(self) -> str:
        """Say how much of journal and points was written, and how much was lost, for a person."""
        points = self._points
        written, lost = (0, 0) if points is None else (points.lines - points.lost, points.lost)
        return f"{self._entries} journal entries and {written} points ({self._entries_lost} and {lost} lost)"

    def sync(self) -> None:
        """Make journal and points durable; raises the `RunError` of a failure."""
        if self._points is not None:
            self._points.sync()

    def close(self) -> None:
        """Make the journal and the points durable, and close them; a second call does nothing."""
        self._free_reserve()
        if self._points is not None:
            self._points.close()
        if self._events is not None:
            self._events.close()

    def begin_results(self) -> None:
        """Free the reserve: what comes now are results, and the end of the journal even if that had failed."""
        self._ending = True
        self._free_reserve()

    def journal(self, event: Event) -> None:
        """Append one event to events.jsonl."""
        if self._events is None or self._points is None or self._events.closed:
            raise RunError(f"{self.path}: the journal is not open")
        if self.failure is not None and not self._ending:
            self._entries_lost += 1
            return
        line = encode(event)
        try:
            self._events.write(line + b"\n")
        except OSError as error:
            self._entries_lost += 1
            self._points.fail(self._events.path, error)
            return
        self._entries += 1
        self.recorders.journal(line)

    def point(self, measurement: str, tags: Mapping[str, str], fields: Mapping[str, Value], time_ns: int) -> None:
        """Append one point, tagged with the run; raises `PointError` for one that does not fit the schema."""
        if self._points is None:
            raise RunError(f"{self.path}: the points file is not open")
        tags = {**self._tags, **tags}
        self._points.append(to_line(measurement, tags, fields, time_ns), sync=measurement in _STATES)
        if self._points.failure is None:
            self.recorders.point(measurement, tags, fields, time_ns)

    def write_manifest(self, manifest: Mapping[str, object]) -> None:
        """Write manifest.json."""
        text = json.dumps(manifest, indent=2, allow_nan=False)
        self._write("manifest.json", text + "\n")
        self.recorders.open(self.path, text)

    def write_summary(self, summary: Mapping[str, object]) -> None:
        """Write summary.json."""
        self._write("summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")

    def write_jobs(self, rows: Iterable[Sequence[object]]) -> None:
        """Write jobs.csv, a row in the order of `JOB_COLUMNS`; None is an empty cell."""
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(JOB_COLUMNS)
        writer.writerows(rows)
        self._write("jobs.csv", text.getvalue())

    def _write(self, name: str, text: str) -> None:
        """Write a file whole or not at all."""
        path = self.path / name
        part = path.with_name(name + ".part")
        try:
            with part.open("w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            raise RunError(f"{path}: cannot write: {error.strerror}") from error

    def _free_reserve(self) -> None:
        with contextlib.suppress(OSError):
            (self.path / ".reserve").unlink()

    def _tell(self, failure: RunError) -> None:
        self.on_failure(failure)  # of now: it may be set after the spool was made


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
