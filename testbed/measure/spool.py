"""Points on disk: append-only segments of whole lines, which shippers and readers of a run follow by position.

Segments are `points.lp`, `points.2.lp`, `points.3.lp`, … in the run directory. A new segment begins when the last one
has reached `SEGMENT_BYTES`. A full segment never grows: it may be compressed (`testbed.run.parts`), or removed when it
has been shipped. A reader needs to poll the last segment only.

An appended line first waits in memory with others, for at most a second, so that a point costs no system call. It
survives

* the end of this process, once it was handed to the kernel: within a second, or at once for a change of state
* a loss of power, once it is durable: after the next round of the thread

A slow disk blocks only the thread: `append` never waits for fsync, and writes at most 64 KiB at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from testbed.errors import RunError, UserError
from testbed.measure.append_file import AppendFile, sync_directory
from testbed.run.parts import READ_ERRORS, open_part, point_parts, reason, size_bytes

SEGMENT_BYTES = 64 << 20
EVERY_S = 1.0
_MOST_WAITING_BYTES = 1 << 16


class Position(NamedTuple):
    """The position of a line: number of the segment, from 1, and offset in bytes."""

    segment: int
    offset: int


START = Position(1, 0)


def segment_path(run: Path, number: int) -> Path:
    """Return the file of a segment, counted from 1, without `.gz` if it is compressed."""
    return point_parts(run).full(number)


def segments(run: Path) -> list[Path]:
    """Return the segments of a run directory, in order; empty if it has none, or does not exist.

    `testbed.run.parts.open_part` opens them, compressed or not.
    """
    parts = point_parts(run)
    return [parts.full(number) for number in parts.numbers()]


def read_lines(run: Path, position: tuple[int, int] = START) -> Iterator[tuple[str, Position]]:
    """Yield each whole line from `position` on, without its line break, with the position after it.

    The iteration ends after the last whole line. Another call from the last position continues with lines that were
    appended meanwhile. Raises `UserError` if the position is in no segment.
    """
    number, offset = position
    parts = point_parts(run)
    while True:
        is_last = not parts.is_full(number)  # before the read: a full segment does not grow any more
        path = parts.full(number)
        try:
            with open_part(path) as file:
                if offset > (size := size_bytes(path)):
                    raise UserError(f"{path}: {size} B: expected at least {offset} B")
                file.seek(offset)
                for raw in file:
                    if not raw.endswith(b"\n"):
                        break
                    offset += len(raw)
                    yield raw[:-1].decode(), Position(number, offset)
        except READ_ERRORS as error:
            raise UserError(f"{path}: cannot read: {reason(error)}; expected points of a run") from error
        if is_last:
            return
        number, offset = number + 1, 0


class Spool:
    """Appends points to a run directory, from any thread, and makes them durable in its own thread.

    The first point begins a new segment, after the existing segments of the run directory.

    When a file cannot be written or made durable, `on_failure` is called once, in the failing thread. `failure` keeps
    the error, and further lines are dropped: the segments have whole lines, in order, without a gap. `on_full` is
    called, also in any thread, with each full segment, which is durable.
    """

    def __init__(
        self,
        run: Path,
        *,
        on_failure: Callable[[RunError], None] = lambda _failure: None,
        on_full: Callable[[Path], None] = lambda _segment: None,
        segment_bytes: int = SEGMENT_BYTES,
        every_s: float = EVERY_S,
    ) -> None:
        self.failure: RunError | None = None
        self.lines = 0  # number of appended lines, including lost ones
        self.lost = 0  # number of lines that were appended after the failure, or waited at that moment
        self._run = run
        self._on_failure = on_failure
        self._on_full = on_full
        self._segment_bytes = segment_bytes
        self._every_s = every_s
        self._one_round = threading.Lock()  # allows one sync at a time; taken before `_lock`
        self._lock = threading.Lock()  # guards all attributes below
        self._waiting = bytearray()
        self._number = 1 + max(point_parts(run).numbers(), default=0)
        self._last = AppendFile(segment_path(run, self._number))
        self._full: list[AppendFile] = []
        self._new_names = True
        self._ends = False
        self._wake = threading.Event()
        threading.Thread(target=self._serve, name="spool", daemon=True).start()

    def append(self, line: str, *, sync: bool = False) -> None:
        """Append one line, given without its line break; with `sync` it is handed to the kernel before this returns.

        The line is durable within `every_s` seconds, or with `sync` as soon as possible.
        """
        with self._lock:
            self.lines += 1
            if self.failure is not None:
                self.lost += 1
                return
            self._waiting += line.encode()
            self._waiting += b"\n"
            if not sync and len(self._waiting) < _MOST_WAITING_BYTES:
                return
            failure = self._hand_over()
        if failure is not None:
            self._on_failure(failure)
        elif sync:
            self._wake.set()

    def sync(self) -> None:
        """Wait until all appended lines are durable; raises the `RunError` of a failure."""
        self._make_durable()
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """Make all lines durable, and end the thread; a failure is kept, not raised. A second call does nothing."""
        if self._ends:
            return
        self._ends = True
        self._wake.set()
        self._make_durable()  # waits for a round of the thread in progress; a later round finds nothing to do
        for file in (*self._full, self._last):
            file.close()

    def fail(self, path: Path, error: OSError) -> None:
        """Treat a failure of another file of the run as a failure of the spool: further lines are dropped."""
        with self._lock:
            failure = self._fail(path, error)
        if failure is not None:
            self._on_failure(failure)

    def _serve(self) -> None:
        while True:
            self._wake.wait(self._every_s)
            self._wake.clear()
            if self._ends:
                return
            self._make_durable()

    def _make_durable(self) -> None:
        with self._one_round:
            with self._lock:
                failure = self._hand_over()
                full, self._full = self._full, []
                last = self._last
                new_names, self._new_names = self._new_names, False
            path = self._run
            try:
                if new_names:
                    sync_directory(self._run)
                for file in (*full, last):
                    path = file.path
                    file.sync()
            except OSError as error:
                with self._lock:
                    failure = failure or self._fail(path, error)
            for file in full:
                file.close()
                if self.failure is None:
                    self._on_full(file.path)
        if failure is not None:
            self._on_failure(failure)

    def _hand_over(self) -> RunError | None:
        """Write waiting lines, and begin a new segment after a full one; return a failure that has to be reported."""
        if not self._waiting:
            return None
        waiting, self._waiting = self._waiting, bytearray()
        before_bytes = self._last.size_bytes
        path = self._last.path
        try:
            self._last.write(waiting)
            if self._last.size_bytes >= self._segment_bytes:
                path = segment_path(self._run, self._number + 1)
                following = AppendFile(path)
                self._full.append(self._last)
                self._last, self._number, self._new_names = following, self._number + 1, True
        except OSError as error:
            if path == self._last.path:
                self.lost += waiting.count(b"\n", self._last.size_bytes - before_bytes)
            return self._fail(path, error)
        return None

    def _fail(self, path: Path, error: OSError) -> RunError | None:
        if self.failure is not None:
            return None
        self.failure = RunError(f"{path}: cannot write: {error.strerror}")
        self.lost += self._waiting.count(b"\n")
        self._waiting.clear()
        return self.failure
