"""The run directory: the truth about a run, append-only while it lasts, atomic at its ends.

`journal` appends an entry and returns its number; `await durable(number)` waits until it survives a loss of power
(`testbed.measure.journal_writer`). What waits for that, and what does not, is in docs/journal.md. Journal and points go
on in new files after `part_bytes`, and full ones are compressed while the run goes on (`testbed.run.parts`).

When a file of the directory cannot be written (no space left, a broken disk), nothing is measured any more, and
`on_failure` is called once. Clean-up goes on: `journal` and `point` do not raise then. A reserve of space, freed by
`begin_results`, leaves room for the journal's end and the results of what was measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

from testbed.errors import RunError, UserError
from testbed.host.whole_files import csv_text, write_whole
from testbed.measure.append_file import sync_directory
from testbed.measure.journal_writer import JournalWriter
from testbed.measure.packer import Packer
from testbed.measure.points import Value, to_line
from testbed.measure.recorders import Recorders
from testbed.measure.run_lock import RunLock
from testbed.measure.schema import MEASUREMENTS
from testbed.measure.spool import SEGMENT_BYTES, Spool
from testbed.measure.tables import JOBS
from testbed.run.events import Event, Intent, Replay
from testbed.run.journal import BadEntryError, encode, read_lines, seal

RESERVE_BYTES = 1 << 20
_STATES = frozenset(measurement.name for measurement in MEASUREMENTS.values() if measurement.state)

JOB_COLUMNS = tuple(column.name for column in JOBS.columns if column.name != "run")


class RunDirectory:
    """Writes one run.

    `recorders` get what was appended. `on_failure` may be set; it is called once, in any thread, when a file
    cannot be written. In a dry run nothing waits for the disk: its loop is in virtual time, its guests do not exist.
    """

    def __init__(
        self, path: Path, tags: Mapping[str, str], recorders: Recorders | None = None,
        *, part_bytes: int = SEGMENT_BYTES, is_dry: bool = False,
    ) -> None:  # fmt: skip
        self.path = path
        self.recorders = recorders or Recorders()
        self.on_failure: Callable[[RunError], None] = lambda _failure: None
        self._tags = dict(tags)
        self._part_bytes = part_bytes
        self.is_dry = is_dry
        self._events: JournalWriter | None = None
        self._points: Spool | None = None
        self._packer = Packer()
        self._entries_left_out = 0  # after a failure
        self._ending = False
        self._parents: list[Path] = []  # made for this run, the innermost first
        self._lock: RunLock | None = None

    def open(self) -> None:
        """Create the directory, which must not be there yet, and its files."""
        made = False
        try:
            self._parents = [parent for parent in self.path.absolute().parents if not parent.exists()]
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.mkdir()
            made = True
            sync_directory(self.path.parent)
            self._lock = RunLock(self.path)
            self._open_files()
        except OSError as error:
            self.discard(made=made)
            raise UserError(f"{self.path}: cannot create the run directory: {error.strerror}") from error

    def go_on(self, lock: RunLock) -> None:
        """Open the directory of a run whose controller was lost, to go on with it, with its lock.

        The last line of each file must be whole (`testbed.measure.torn_lines`).
        """
        self._lock = lock
        try:
            (self.path / ".reserve").unlink(missing_ok=True)
            (self.path / "events.jsonl.next").unlink(missing_ok=True)
            self._open_files(continues=True)
            self.recorders.open(self.path, (self.path / "manifest.json").read_text(encoding="utf-8"))
        except OSError as error:
            self.close()
            raise UserError(f"{self.path}: cannot go on with the run directory: {error.strerror}") from error

    def _open_files(self, *, continues: bool = False) -> None:
        """Make the reserve, and open journal and points; raises `OSError`."""
        with (self.path / ".reserve").open("xb") as reserve:
            os.posix_fallocate(reserve.fileno(), 0, RESERVE_BYTES)
        self._points = Spool(
            self.path,
            on_failure=self._tell,
            on_full=self._packer.put,
            segment_bytes=self._part_bytes,
        )
        journal = self.path / "events.jsonl"
        self._events = JournalWriter(
            journal,
            part_bytes=self._part_bytes,
            on_failure=partial(self._points.fail, journal),
            on_full=self._packer.put,
            continues=continues,
        )

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
        """The failure after which nothing is measured any more, if any; it names the file and the reason."""
        return None if self._points is None else self._points.failure

    def kept(self) -> str:
        """Return how much of journal and points was written, and how much was lost, for a person."""
        points, events = self._points, self._events
        if events is not None:
            with contextlib.suppress(RunError):
                events.sync()  # waiting entries count, too
        written, lost = (0, 0) if points is None else (points.lines - points.lost, points.lost)
        entries, entries_lost = (0, 0) if events is None else (events.written, events.lost + self._entries_left_out)
        return f"{entries} journal entries and {written} points ({entries_lost} and {lost} lost)"

    def sync(self) -> None:
        """Make journal and points durable; raises the `RunError` of a failure."""
        if self._events is not None:
            self._events.sync()
        if self._points is not None:
            self._points.sync()

    def close(self) -> None:
        """Make the journal and the points durable, and close them; a second call does nothing."""
        self._free_reserve()
        if self._events is not None:
            self._events.close()
        if self._points is not None:
            self._points.close()
        self._packer.close()
        if self._lock is not None:
            self._lock.release()

    def begin_results(self) -> None:
        """Free the reserve: from now on results are written, and the end of the journal even if that had failed."""
        self._ending = True
        self._free_reserve()
        if self._events is not None:
            self._events.go_on()

    def journal(self, event: Event) -> int:
        """Append one event to the journal; return its number, for `durable`.

        The begin of the replay, and the intent of an operation that creates or moves something, are written by this
        call, so that the end of this process cannot take them; other entries, and a cap, by a thread.
        """
        if self._events is None or self._events.closed:
            raise RunError(f"{self.path}: the journal is not open")
        if self.failure is not None and not self._ending:
            self._entries_left_out += 1
            return 0
        line = encode(event)
        creates = isinstance(event, Replay) or (isinstance(event, Intent) and event.verb != "cap")
        number = self._events.append(seal(line), at_once=creates or self.is_dry)
        if self.failure is None or self._ending:
            self.recorders.journal(line)
        return number

    async def durable(self, number: int) -> None:
        """Wait until entry `number` of the journal, and all before it, survive a loss of power.

        Entries that are waited for in one turn of the event loop are made durable together. A dry run does not wait.
        Raises the `RunError` of a failure of the run directory.
        """
        if self.failure is not None:
            raise self.failure
        if self._events is not None and not self.is_dry:
            await self._events.durable(number)

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
        """Write jobs.csv, its rows in the order of `JOB_COLUMNS`; None is an empty cell."""
        self._write("jobs.csv", csv_text(JOB_COLUMNS, rows))

    def _write(self, name: str, text: str) -> None:
        """Write a file whole or not at all."""
        path = self.path / name
        try:
            write_whole(path, text)
            sync_directory(self.path)
        except OSError as error:
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


def journal_entries(path: Path) -> Iterator[dict[str, object]]:
    """Yield the entries of the journal that grows at `path`, the file events.jsonl, as data, without checksums.

    What `testbed.run.journal.read_events` says of lines and errors holds.
    """
    return read_lines(path, _entry)


def read_journal(path: Path) -> list[dict[str, object]]:
    """Return all of `journal_entries`."""
    return list(journal_entries(path))


def _entry(line: bytes) -> dict[str, object]:
    try:
        entry = cast("dict[str, object]", json.loads(line))
    except ValueError as error:
        raise BadEntryError(f"not JSON: {error}") from None
    entry.pop("crc", None)
    return entry
