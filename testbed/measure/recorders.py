"""Recorders: plug-ins that get all records of a run, in addition to the run directory, which stays authoritative.

A plug-in is an entry point of the group `testbed.recorders`: a callable without arguments that returns a
`RunRecorder`. A scenario enables recorders by name: `recorders = ["wall"]`. A recorder takes its own settings, such as
an address or a password, from the environment, because every run directory has a copy of the scenario.

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
MOST_WAITING = 200_000  # limit of waiting records per recorder
CLOSE_WITHIN_S = 10.0


class RunRecorder(Protocol):
    """Records one run. All calls are made in order, in a separate thread per recorder, and may block.

    After an exception from a call only `close` is called.
    """

    def open(self, path: Path, manifest: Mapping[str, object]) -> None:
        """Called before a run replays its jobs; `path` is its directory, `manifest` the content of manifest.json.

        Earlier records, such as calibration, follow this call. A run that ends before it is not reported at all.
        """

    def journal(self, entry: Mapping[str, object]) -> None:
        """Called for each journal entry: `t_s` (seconds since the run began), `kind`, and the keys of this kind."""

    def point(self, measurement: str, tags: Mapping[str, str], fields: Mapping[str, Value], time_ns: int) -> None:
        """Called for each point, with the tags of the run; `time_ns` is Unix time. See `testbed.measure.points`."""

    def close(self) -> None:
        """Called after the run, when only the end of the journal is missing; must return within `CLOSE_WITHIN_S`."""


_Call = Callable[[RunRecorder], None]


def find_recorders(names: Sequence[str]) -> dict[str, Callable[[], RunRecorder]]:
    """Return the factory of each recorder, by name; raises `UserError` for a missing or broken recorder."""
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
    """Create the recorder of each name; raises `UserError`."""
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
    """Calls recorders, each in its own thread: a recorder that fails, hangs or falls behind never blocks the run."""

    def __init__(self, recorders: Mapping[str, RunRecorder] | None = None) -> None:
        self._feeds = [_Feed(name, recorder) for name, recorder in (recorders or {}).items()]
        self._early: list[_Call] = []
        self._opened = False

    def open(self, path: Path, manifest: str) -> None:
        """Open all recorders, with the manifest as a JSON text, and pass the earlier records to them."""
        self._opened = True
        for call in (lambda recorder: recorder.open(path, json.loads(manifest)), *self._early):
            self._tell(call)
        self._early.clear()
        for feed in self._feeds:
            feed.start()

    def journal(self, line: bytes) -> None:
        """Pass on a journal entry, as a JSON text."""
        if self._feeds:  # the thread parses the text, because objects of the entry may change here
            self._tell(lambda recorder: recorder.journal(json.loads(line)))

    def point(self, measurement: str, tags: Mapping[str, str], fields: Mapping[str, Value], time_ns: int) -> None:
        """Pass on a point."""
        if self._feeds:
            copied = dict(fields)
            self._tell(lambda recorder: recorder.point(measurement, dict(tags), dict(copied), time_ns))

    def failures(self) -> Iterator[tuple[str, str]]:
        """Yield name and reason of each failed recorder that was not reported before."""
        for feed in self._feeds:
            if feed.failure is not None and not feed.reported:
                feed.reported = True
                yield feed.name, feed.failure

    def close(self) -> None:
        """Close all recorders, and wait for them for `CLOSE_WITHIN_S` in total."""
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
    """One recorder, its thread, and the queue of its records."""

    def __init__(self, name: str, recorder: RunRecorder) -> None:
        self.name = name
        self.failure: str | None = None
        self.reported = False
        self._recorder = recorder
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        # a daemon thread, so that an unresponsive recorder does not keep the process alive
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
        except BaseException as error:  # noqa: BLE001  # an error of a plug-in must end only the plug-in
            self.failure = self.failure or _words(error)


def _words(error: BaseException) -> str:
    """Return the exception on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
