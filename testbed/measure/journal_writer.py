"""Appends the entries of a journal and makes them durable in groups, off the event loop (group commit).

`append` returns the number of an entry, and `await durable(number)` waits until that entry and all earlier ones survive
a loss of power. All entries that were appended before a commit begins are written together, and one fdatasync makes
them durable: with an fdatasync of 2 ms, a hundred concurrent coroutines wait for 2 to 4 ms, not for 200 ms.

An appended entry survives

* the end of this process: with `at_once` immediately, unless the thread is writing at that moment; otherwise after the
  present turn of the event loop and the commit in progress
* a loss of power: after `durable`, or within `EVERY_S`

When the file has reached `part_bytes`, it is made durable and renamed, and entries continue in a new file of the
original name (`testbed.run.parts`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from testbed.errors import RunError
from testbed.measure.append_file import AppendFile, sync_directory
from testbed.run.parts import journal_parts

EVERY_S = 1.0
_MOST_WAITING_BYTES = 1 << 14  # most bytes that a kill or a full disk can lose before the thread runs


class _Waiter(NamedTuple):
    number: int
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]


class JournalWriter:
    """Writes a new journal in a run directory, or with `continues` appends to the existing one.

    `append` and `durable` are for one thread.

    When the journal cannot be written or made durable, `on_failure` is called once, in any thread, and `failure` keeps
    the error. From then on entries are not appended, but counted in `lost`, until `go_on` is called. `on_full` is
    called, in any thread, with the file of each full part, which is durable.
    """

    def __init__(
        self, path: Path, *, part_bytes: int, every_s: float = EVERY_S, continues: bool = False,
        on_failure: Callable[[OSError], None] = lambda _error: None,
        on_full: Callable[[Path], None] = lambda _part: None,
    ) -> None:  # fmt: skip
        self.path = path
        self.failure: RunError | None = None
        self.written = 0  # number of entries that were handed to the kernel
        self.lost = 0
        self._parts = journal_parts(path)
        self._part_bytes = part_bytes
        self._every_s = every_s
        self._on_failure = on_failure
        self._on_full = on_full
        self._one_commit = threading.Lock()  # order of the locks: this one first, `_lock` last
        self._next_sync_s = 0.0
        self._new_name = True
        self._file_lock = threading.Lock()  # guards the next two attributes; taken before `_lock`
        self._file = AppendFile(path, continues=continues)
        self._number = 1 + max(self._parts.numbers(), default=0)
        self._lock = threading.Lock()  # guards all attributes below, `written` and `lost`
        self._waiting = bytearray()
        self._appended = 0  # number of entries, including lost ones
        self._handed_over = 0  # number of entries that have left `_waiting`
        self._durable = 0
        self._waiters: list[_Waiter] = []
        self._stopped = False
        self._turn_of: asyncio.AbstractEventLoop | None = None  # the event loop whose turn wakes the thread at its end
        self._ends = False
        self._wake = threading.Event()
        threading.Thread(target=self._serve, name="journal", daemon=True).start()

    @property
    def closed(self) -> bool:
        """Whether the journal was closed."""
        return self._file.closed

    def append(self, line: bytes, *, at_once: bool = False) -> int:
        """Append one line, given without its line break; return its number, from 1 on.

        With `at_once`, or if 16 KiB are waiting, this call writes the line and all waiting ones, unless the thread
        writes at that moment. The write may block on a disk that is busy with other files, but the caller never waits
        for a commit of the thread.
        """
        with self._lock:
            self._appended += 1
            number = self._appended
            if self._stopped:
                self.lost += 1
                return number
            self._waiting += line
            self._waiting += b"\n"
            at_once |= len(self._waiting) >= _MOST_WAITING_BYTES
        if at_once and self._file_lock.acquire(blocking=False):
            try:
                self._hand_over()
            except OSError as error:
                self._fail(error)
            finally:
                is_full = self._file.size_bytes >= self._part_bytes
                self._file_lock.release()
            if is_full:
                self._wake.set()
        else:
            self._wake_after_this_turn()
        return number

    async def durable(self, number: int) -> None:
        """Wait until entry `number` and all earlier ones are durable; raises the `RunError` of a failure."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self.failure is not None:
                raise self.failure
            if number <= self._durable:
                return
            future = loop.create_future()
            self._waiters.append(_Waiter(number, loop, future))
        self._wake_after_this_turn()
        await future

    def sync(self) -> None:
        """Block until all appended entries are durable; raises the `RunError` of a failure."""
        self._commit(at_once=True)
        if self.failure is not None:
            raise self.failure

    def go_on(self) -> None:
        """Accept entries again after a failure, as far as disk space permits."""
        with self._lock:
            self._stopped = False

    def close(self) -> None:
        """Make all entries durable, and end the thread; a failure is kept, not raised. A second call does nothing."""
        if self._ends:
            return
        self._ends = True
        self._wake.set()
        self._commit(at_once=True)
        with self._one_commit:
            self._file.close()

    def _wake_after_this_turn(self) -> None:
        """Wake the thread after this turn of the event loop, to commit all its entries; outside of a loop at once."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._wake.set()
            return
        if self._turn_of is not loop:
            self._turn_of = loop
            loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn_of = None
        self._wake.set()

    def _serve(self) -> None:
        while not self._ends:
            self._wake.wait(self._every_s)
            self._wake.clear()
            self._commit()

    def _commit(self, *, at_once: bool = False) -> None:
        """Write waiting entries; make them durable if a coroutine waits, or after `every_s`; rotate a full file."""
        with self._one_commit:
            if self.closed:
                return
            try:
                with self._file_lock:
                    self._hand_over()
                    number = self._handed_over
                is_full = self._file.size_bytes >= self._part_bytes
                if not (at_once or is_full or self._waiters or time.monotonic() >= self._next_sync_s):
                    return
                self._next_sync_s = time.monotonic() + self._every_s
                if self._new_name:
                    sync_directory(self.path.parent)
                    self._new_name = False
                self._file.sync()
                self._release(number)
                if is_full and not self._ends and self.failure is None:
                    self._release(self._rotate())
            except OSError as error:
                self._fail(error)

    def _hand_over(self) -> None:
        """Write the waiting lines; the caller holds `_file_lock`. Raises `OSError` if not all were written."""
        with self._lock:
            lines, self._waiting = self._waiting, bytearray()
            self._handed_over = self._appended
        if not lines:
            return
        before_bytes = self._file.size_bytes
        try:
            self._file.write(lines)
        except OSError:
            kept = lines.count(b"\n", 0, self._file.size_bytes - before_bytes)
            with self._lock:
                self.written += kept
                self.lost += lines.count(b"\n") - kept
                self._stop()
            raise
        with self._lock:
            self.written += lines.count(b"\n")

    def _rotate(self) -> int:
        """Continue in a new file; return the number of the last entry of the full file, which is durable."""
        following = AppendFile(self.path.with_name(f"{self.path.name}.next"))  # first: this may fail on a full disk
        full = self._parts.full(self._number)
        try:
            with self._file_lock:  # meanwhile entries wait in memory
                self._file.sync()
                self._file.move(full)
                try:
                    following.move(self.path)
                except OSError:
                    self._file.move(self.path)
                    raise
                done, self._file = self._file, following
                number = self._handed_over
        except OSError:
            following.close()
            with contextlib.suppress(OSError):
                following.path.unlink()
            raise
        self._number += 1
        done.close()
        sync_directory(self.path.parent)
        self._on_full(full)
        return number

    def _release(self, number: int) -> None:
        """Wake the coroutines that wait for entries up to `number`, which are durable."""
        with self._lock:
            self._durable = max(self._durable, number)
            ready = [each for each in self._waiters if each.number <= number]
            self._waiters = [each for each in self._waiters if each.number > number]
        _resolve(ready, None)

    def _fail(self, error: OSError) -> None:
        """Store a failure, and raise it in all waiting coroutines."""
        with self._lock:
            is_first = self.failure is None
            failure = self.failure = self.failure or RunError(f"{self.path}: cannot write: {error.strerror}")
            self._stop()
            waiters, self._waiters = self._waiters, []
        _resolve(waiters, failure)
        if is_first:
            self._on_failure(error)

    def _stop(self) -> None:
        """Refuse further entries, so that none is written behind a lost one; the caller holds `_lock`."""
        self._stopped = True
        self.lost += self._waiting.count(b"\n")
        self._waiting.clear()


def _resolve(waiters: Sequence[_Waiter], failure: RunError | None) -> None:
    """Wake waiting coroutines, from any thread."""
    for loop in {each.loop for each in waiters}:
        futures = [each.future for each in waiters if each.loop is loop]
        with contextlib.suppress(RuntimeError):  # the loop is closed: no coroutine waits any more
            loop.call_soon_threadsafe(_end, futures, failure)


def _end(futures: Sequence[asyncio.Future[None]], failure: RunError | None) -> None:
    for future in futures:
        if future.done():  # cancelled
            continue
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)
