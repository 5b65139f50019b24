"""Follower of the files of a run, which switches to the next run when that begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.errors import UserError
from testbed.measure.rundir import read_json
from testbed.run.parts import journal_parts, point_parts
from testbed.run.tail import Tail
from testbed.study.report.browser.changes import Page
from testbed.study.report.browser.hub import Hub
from testbed.study.report.browser.state import RunState

POLL_S = 0.25
_BACK_BYTES = 4 << 20  # bytes of earlier points that are read at the start


@dataclass(slots=True)
class Reading:
    """The result of one poll of the files; `again` is whether the journal was replaced by another."""

    manifest: Mapping[str, Any] | None = None
    journal: list[bytes] = field(default_factory=list)
    points: list[bytes] = field(default_factory=list)
    again: bool = False


class RunFiles:
    """Reader of the growing files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._journal = Tail(journal_parts(path / "events.jsonl"))
        self._points = Tail(point_parts(path), _BACK_BYTES)
        self._has_manifest = False

    @property
    def grew_unix_s(self) -> float:
        """Unix time at which one of the files last grew."""
        return max(self._journal.grew_unix_s, self._points.grew_unix_s)

    def read(self) -> Reading:
        """Return the new content of the files, or a part of it if there is much; empty if there is none."""
        reading = Reading(points=self._points.read()[0])
        reading.journal, reading.again = self._journal.read()
        if reading.again:
            self._has_manifest = False
        if not self._has_manifest:  # after the journal: the manifest is written before the replay's first entry
            try:
                reading.manifest = read_json(self.path / "manifest.json")
                self._has_manifest = True
            except UserError:
                reading.manifest = None
        return reading


class RunFeed:
    """The page of one run, with the files that it is from."""

    def __init__(self, path: Path) -> None:
        self.files = RunFiles(path)
        self.page = Page(RunState(path.name))

    def feed(self, reading: Reading) -> bool:
        """Process the data of a poll; return whether there may be more."""
        if reading.again:
            self.page = Page(RunState(self.files.path.name))
        state = self.page.state
        if reading.manifest is not None:
            state.feed_manifest(reading.manifest)
        for line in reading.journal:
            state.feed_line(line)
        state.feed_points(reading.points)
        return bool(reading.journal or reading.points)


def pieces(reading: Reading, lines: int = 200) -> Iterator[Reading]:
    """Split a reading into parts of at most `lines` lines, whose processing blocks the event loop only briefly."""
    yield Reading(reading.manifest, again=reading.again)
    for begin in range(0, max(len(reading.journal), len(reading.points)), lines):
        yield Reading(None, reading.journal[begin : begin + lines], reading.points[begin : begin + lines])


class Follower:
    """Follower of the run that `choose` returns: polls its files four times per second and publishes changes.

    `choose` is called at each poll, so that a newer run replaces an older one; it returns None if there is no run yet.
    """

    def __init__(self, choose: Callable[[], Path | None]) -> None:
        self._choose = choose
        self._feed: RunFeed | None = None
        self.hub = Hub(self.snapshot)

    def snapshot(self) -> Mapping[str, Any]:
        """Return the whole page."""
        if self._feed is None:
            return {"head": {"run": "", "state": "no run yet"}}
        return self._feed.page.snapshot()

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(POLL_S)

    async def look(self) -> None:
        """Read all new data and publish the changes; a thread reads the files, so that a slow disk blocks no stream."""
        path = await asyncio.to_thread(self._choose)
        restarts = path != (None if self._feed is None else self._feed.files.path)
        feed = self._feed
        if restarts:
            feed = None if path is None else await asyncio.to_thread(RunFeed, path)
        if feed is not None:
            restarts |= await self._catch_up(feed)
        self._feed = feed
        if feed is not None:
            self.hub.news_unix_ms = feed.files.grew_unix_s * 1e3
            changes = feed.page.update()
            if not restarts and len(changes) > 1:
                self.hub.publish(changes)
        if restarts:
            self.hub.restart()

    @staticmethod
    async def _catch_up(feed: RunFeed) -> bool:
        """Process all available data; return whether the journal was replaced."""
        again = False
        more = True
        while more:
            reading = await asyncio.to_thread(feed.files.read)
            more = False
            for piece in pieces(reading):
                again |= piece.again
                more |= feed.feed(piece)
                await asyncio.sleep(0)
        return again
