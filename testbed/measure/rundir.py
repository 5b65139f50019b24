"""The run directory: the authoritative record of a run, append-only during the run, with atomic start and end.

`journal` appends an entry and returns its number; `await durable(number)` waits until the entry survives a loss of
power (`testbed.measure.journal_writer`). docs/journal.md lists the operations that wait for it. Journal and points
continue in new files after `part_bytes`, and full files are compressed during the run (`testbed.run.parts`).

When a file of the directory cannot be written (no space left, a broken disk), measurements end, and `on_failure` is
called once. Clean-up continues: `journal` and `point` do not raise after the failure. `begin_results` frees a reserve
of disk space for the end of the journal and the results.
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
    """Writes the directory of one run.

    `recorders` get all appended records. `on_failure` may be set; it is called once, in any thread, when a file cannot
    be written. A dry run never waits for the disk: its loop is in virtual time, and its guests do not exist.
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
        self._entries_left_out = 0  # number of entries after a failure
        self._ending = False
        self._parents: list[Path] = []  # folders that were created for this run, the innermost first
        self._lock: RunLock | None = None

    def open(self) -> None:
        """Create the directory, which must not exist yet, and its files; raises `UserError`."""
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
        """Open the directory of a run whose controller was lost, to continue it; the caller passes its lock.

        The last line of each file must be complete (`testbed.measure.torn_lines`). Raises `UserError`.
        """
        self._lock = lock
        try:
            (self.path / ".reserve").unlink(missing_ok=True)
            (self.path / "events.jsonl.next").unlink(missing_ok=True)
            self._open_files(continues=True)
            self.recorders.open(self.path, (self.path / "manifest.json").read_text(encoding="utf-8"))
        except OSError as error:
            self.close()
            raise UserError(f"{self.path}: cannot continue the run directory: {error.strerror}") from error

    def _open_files(self, *, continues: bool = False) -> None:
        """Allocate the reserve, and open journal and points; raises `OSError`."""
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
        """Close and remove the directory, and the empty folders above it that were created for it."""
        self.close()
        if made:
            shutil.rmtree(self.path, ignore_errors=True)
        for parent in self._parents:
            with contextlib.suppress(OSError):
                parent.rmdir()

    @property
    def failure(self) -> RunError | None:
        """The failure that has ended measurements, if any, with the file and the reason."""
        return None if self._points is None else self._points.failure

    def kept(self) -> str:
        """Return a text with the numbers of journal entries and points that were written and lost."""
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
        """Free the reserve for the results, and accept journal entries again after a failure."""
        self._ending = True
        self._free_reserve()
        if self._events is not None:
            self._events.go_on()

    def journal(self, event: Event) -> int:
        """Append one event to the journal; return its number, for `durable`.

        This call itself writes the begin of the replay, and the intent of an operation that creates or moves guests or
        images, so that these entries survive the end of this process. A thread writes all other entries.
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
        """Wait until entry `number` of the journal, and all earlier ones, survive a loss of power.

        Waits that begin in one turn of the event loop share one commit. A dry run does not wait.
        Raises the `RunError` of a failure of the run directory.
        """
        if self.failure is not None:
            raise self.failure
        if self._events is not None and not self.is_dry:
            await self._events.durable(number)

    def point(self, measurement: str, tags: Mapping[str, str], fields: Mapping[str, Value], time_ns: int) -> None:
        """Append one point with the tags of the run; raises `PointError` for a point that does not fit the schema."""
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
        """Write a file atomically."""
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
        self.on_failure(failure)  # looked up here, because it may be set after the creation of the spool


def read_json(path: Path) -> dict[str, object]:
    """Read manifest.json or summary.json; raises `UserError` for a missing or broken file."""
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

    Incomplete lines and errors are treated as in `testbed.run.journal.read_events`.
    """
    return read_lines(path, _entry)


def read_journal(path: Path) -> list[dict[str, object]]:
    """Return the entries of `journal_entries` as a list."""
    return list(journal_entries(path))


def _entry(line: bytes) -> dict[str, object]:
    try:
        entry = cast("dict[str, object]", json.loads(line))
    except ValueError as error:
        raise BadEntryError(f"not JSON: {error}") from None
    entry.pop("crc", None)
    return entry
