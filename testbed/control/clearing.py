"""Waits until all guests of a withdrawn job have certainly ended, so that the job can run again elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

from testbed.bus.failure_codes import Failure
from testbed.control.cluster import LiveJob
from testbed.control.recorder import Recorder
from testbed.lab.fences import Clearance, FenceBook, Place
from testbed.lab.operations import Operations
from testbed.run import events


class UnclearError(Exception):
    """The controller cannot determine whether the guests of a job have ended."""

    def __init__(self, why: Failure) -> None:
        super().__init__(why.text)
        self.why = why


class Clearing:
    """Destroys guests of withdrawn jobs, and waits for fences on nodes that do not answer; see docs/resume.md.

    `unclear(nodes)` returns the reason for which guests on these nodes may run forever, None if they cannot.
    """

    def __init__(
        self, operations: Operations, recorder: Recorder, book: FenceBook | None,
        unclear: Callable[[Sequence[int]], Failure | None],
    ) -> None:  # fmt: skip
        self._unclear = unclear
        self._operations = operations
        self._recorder = recorder
        self._book = book if book is not None else FenceBook(0.0, destroyed_within_s=0.0)
        self._news = asyncio.Event()
        self._waiting: set[asyncio.Task[Any]] = set()

    def wake(self) -> None:
        """Check waiting jobs again: a node has returned and may answer now, or is lost."""
        self._news.set()

    def inherit(self, node: int, guest: str, taken_over_s: float) -> None:
        """Account for the fences that earlier controllers of the run may have granted to a guest."""
        self._book.inherit(node, guest, taken_over_s)

    def close(self) -> None:
        """Cancel all waits at the end of the run: the release of its lease destroys all guests."""
        for task in self._waiting:
            task.cancel()

    async def clear(self, live: LiveJob) -> None:
        """Return when no guest of a withdrawn job runs on any node; raises `UnclearError`."""
        state = live.state
        here = zip(state.running_on or (), live.guests, strict=False)
        there = zip(state.migrating_to or (), live.guests, strict=False)
        clearance = Clearance(self._book, here, there)
        task = asyncio.ensure_future(self._clear(live, clearance))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        await task

    async def _clear(self, live: LiveJob, clearance: Clearance) -> None:
        loop = asyncio.get_running_loop()
        told: tuple[int, ...] = ()
        tried: list[Place] = []
        await self._stop(live, clearance, [*clearance.places])
        while left := clearance.left(loop.time()):
            self._news.clear()
            if left != tried:  # the targets of a migration can be stopped once all its sources have ended
                tried = left
                await self._stop(live, clearance, left)
                continue
            nodes = tuple(sorted({node for node, _ in left}))
            if (why := self._unclear(nodes)) is not None:
                raise UnclearError(why)
            until_s = clearance.ends_s()
            if nodes != told and math.isfinite(until_s):
                told = nodes
                self._tell(live, nodes, until_s - loop.time())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until_s if math.isfinite(until_s) else None):
                    await self._news.wait()
            tried = []

    async def _stop(self, live: LiveJob, clearance: Clearance, places: list[Place]) -> None:
        settles = clearance.left(asyncio.get_running_loop().time())
        stopped = await self._operations.stop_guests(places, dict.fromkeys(live.guests, live.generation))
        clearance.stopped(place for place in stopped if place in settles)

    def _tell(self, live: LiveJob, nodes: Sequence[int], left_s: float) -> None:
        until_s = round(self._recorder.now_s() + left_s, 6)
        self._recorder.journal(
            events.FenceAwaited(*self._recorder.times(), job=live.job_id, nodes=tuple(nodes), until_s=until_s)
        )
        where = self._recorder.where(nodes)
        self._recorder.say(
            f"job {live.job_id} waits for the fences of its guests on {where}, for {left_s:.1f} s at most"
        )
