"""Recorders: plug-ins that get everything that a run records, beside its run directory, which stays the truth.

A plug-in is an entry point of the group `testbed.recorders`: a callable without arguments that returns a
`RunRecorder`. A scenario names those that it wants: `recorders = ["wall"]`. A recorder takes its own settings, such as
an address or a password, from the environment: a scenario is copied into every run directory.

    [project.entry-points."testbed.recorders"]
    wall = "my_package.recorders:WallRecorder"
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

from testbed.errors import UserError, nearest
from testbed.measure.points import Value

PLUGIN_GROUP = "testbed.recorders"
MOST_WAITING = 200_000  # records that a recorder may be behind
CLOSE_WITHIN_S = 10.0


class RunRecorder(Protocol):
    """Records one run. All calls come in order, in a thread of the recorder's own: they may take their time.

    After an exception from any of them only `close` follows.
    """

    def open(self, path: Path, manifest: Mapping[str, object]) -> None:
        """A run is about to replay its jobs; `path` is its directory, `manifest` the content of manifest.json.

        What was recorded before, such as calibration, follows. A run that ends before this is not reported at all.
        """

    def journal(self, entry: Mapping[str, object]) -> None:
        """An entry was appended to the journal: `t_s`, seconds since the run began, `kind`, and what belongs to it."""

    def point(self, measurement: str, tags: Mapping[str, str], fields: Mapping[str, Value], time_ns: int) -> None:
        """A point was written, with the tags of the run; `time_ns` is Unix time. See `testbed.measure.points`."""

    def close(self) -> None:
        """The run has ended and its directory is complete but for the journal's very end; within `CLOSE_WITHIN_S`."""


_Call = Callable[[RunRecorder], None]


def find_recorders(names: Sequence[str]) -> dict[str, Callable[[], RunRecorder]]:
    """Return what makes the recorder of each name; raises `UserError` for one that is not installed or broken."""
    points = {point.name: point for point in entry_points(group=PLUGIN_GROUP)} if names else {}
    found: dict[str, Callable[[], RunRecorder]] = {}
    for name in names:
        if name not in points:
            hint = nearest(name, points) or f"; installed: {', '.join(sorted(points)) or 'none'}"
            raise UserError(f"recorders: unknown recorder {name!r}{hint}")
        try:
            found[name] = points[name].load()
        except Exception as error:
            raise UserError(f"recorder {name!r}: cannot load {points[name].value}: {_words(error)}") from error
    return found


def make_recorders(names: Sequence[str]) -> dict[str, RunRecorder]:
    """Return a new recorder for each name; raises `UserError`."""
    made: dict[str, RunRecorder] = {}
    for name, factory in find_recorders(names).items():
        try:
            made[name] = factory()
        except UserError as error:
            raise UserError(f"recorder {name!r}: {error}") from error
        except Exception as error:
            raise UserError(f"recorder {name!r}: {_words(error)}") from error
    return made


class Recorders:
    """Calls recorders, each in a thread of its own: one that fails, hangs or falls behind never holds up the run."""

    def __init__(self, recorders: Mapping[str, RunRecorder] | None = None) -> None:
        self._feeds = [_Feed(name, recorder) for name, recorder in (recorders or {}).items()]
        self._early: list[_Call] = []
        self._opened = False

    def open(self, path: Path, manifest: str) -> None:
        """The manifest is written, as this JSON text: from here on recorders get the run."""
        self._opened = True
        for call in (lambda recorder: recorder.open(path, json.loads(manifest)), *self._early):
            self._tell(call)
        self._early.clear()
        for feed in self._feeds:
            feed.start()

    def journal(self, line: bytes) -> None:
        """An entry was written, as this JSON text."""
        if self._feeds:  # parsed again there: the objects of the entry may change here
            self._tell(lambda recorder: recorder.journal(json.loads(line)))

    def point(self, measurement: str, tags: Mapping[str, str], fields: Mapping[str, Value], time_ns: int) -> None:
        """A point was written."""
        if self._feeds:
            copied = dict(fields)
            self._tell(lambda recorder: recorder.point(measurement, dict(tags), dict(copied), time_ns))

    def failures(self) -> Iterator[tuple[str, str]]:
        """Yield name and reason of each recorder that was left out and not reported before."""
        for feed in self._feeds:
            if feed.failure is not None and not feed.reported:
                feed.reported = True
                yield feed.name, feed.failure

    def close(self) -> None:
        """Let them finish, all within `CLOSE_WITHIN_S`."""
        if self._opened:
            self._opened = False
            for feed in self._feeds:
                feed.end()
            ends_s = time.monotonic() + CLOSE_WITHIN_S
            for feed in self._feeds:
                feed.join(ends_s - time.monotonic())

    def _tell(self, call: _Call) -> None:
        if not self._opened:
            self._early.append(call)
            return
        for feed in self._feeds:
            feed.put(call)


class _Feed:
    """One recorder, its thread, and the records that it has not had yet."""

    def __init__(self, name: str, recorder: RunRecorder) -> None:
        self.name = name
        self.failure: str | None = None
        self.reported = False
        self._recorder = recorder
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        # a daemon: one that hangs does not keep the process
        self._thread = Thread(target=self._serve, name=f"recorder {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, call: _Call) -> None:
        if self.failure is None and self._calls.qsize() >= MOST_WAITING:
            self.failure = f"it fell {MOST_WAITING} records behind"
        if self.failure is None:
            self._calls.put(call)

    def end(self) -> None:
        self._calls.put(None)

    def join(self, timeout_s: float) -> None:
        self._thread.join(max(0.0, timeout_s))
        if self._thread.is_alive() and self.failure is None:
            self.failure = f"it did not finish within {CLOSE_WITHIN_S:g} s of the end of the run"

    def _serve(self) -> None:
        self._guard(self._hear)
        self._guard(self._recorder.close)

    def _hear(self) -> None:
        for call in iter(self._calls.get, None):
            if self.failure is not None:
                return
            call(self._recorder)

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # whatever a plug-in raises ends only the plug-in
            self.failure = self.failure or _words(error)


def _words(error: BaseException) -> str:
    """Return the exception on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
