"""Measures the rate of a job's progress, by its programs' own counts and clocks, and the CPU time used meanwhile.

Programs report their progress every half a second or less often, with the time of their own clock. CPU time is read
with the clock of each node. So transmission delays to the controller do not affect the rates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from itertools import pairwise
from statistics import median
from typing import Any, Protocol

from testbed.errors import RunError, TestbedError
from testbed.lab.core_speed import checked_rate
from testbed.lab.live_nodes import LiveNodes
from testbed.lab.outcomes import Progress, Rate, Watched

WINDOW_S = 1.0  # two reports of a program
REPORT_S = 0.6  # within this time a program reports at least once
SETTLE_S = 0.25  # after a change of caps: two enforcement periods of a cap
PART_S = 2.0  # of a long window: longer than the moments in which a busy machine is slow, or a guest does other work
_SAMPLE_S = 0.25
_POLL_S = 0.05  # a shorter period would cost the nodes CPU time


class Reporting(Protocol):
    """A job whose rate is measured: its guests and their nodes, by task, and its progress by guest name."""

    @property
    def guests(self) -> tuple[str, ...]:
        """Names of the guests."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of their nodes."""

    async def progress(self) -> dict[str, Progress]:
        """Read the progress of each guest."""


async def rate(job: Reporting, window_s: float, settle_s: float, limit_s: float) -> float:
    """See `LabJob.rate`; only reports are read, at long intervals, so that polling does not disturb the job."""
    await asyncio.sleep(settle_s)
    reports = [await job.progress()]
    parts = max(1, int(window_s / PART_S))
    for _ in range(parts):
        reports.append(await _reported(job, reports[-1], window_s / parts, limit_s, every_s=REPORT_S, least_s=0.0))
    found = []
    for node, guest in zip(job.nodes, job.guests, strict=True):
        told = (report[guest] for report in reports)
        typical = median((now.units - was.units) / (now.mono_s - was.mono_s) for was, now in pairwise(told))
        found.append(checked_rate(f"node {node}: rate of {guest}", typical))
    return min(found)


async def rate_and_use(live: LiveNodes, job: Reporting, window_s: float, settle_s: float) -> Rate:
    """See `LabJob.rate_and_use`."""
    await asyncio.sleep(settle_s)
    limit_s = live.command_s
    begin = await _reported(job, await job.progress(), 0.0, limit_s)
    end, *watched = await _both(
        _reported(job, begin, window_s, limit_s),
        *(live.watch(node, guests, min(_SAMPLE_S, window_s), window_s) for node, guests in _by_node(job).items()),
    )
    found = []
    for guest, was in begin.items():
        now = end[guest]
        if now.units <= was.units:
            raise RunError(f"guest {guest}: no progress within {now.mono_s - was.mono_s:.3g} s, at {now.units} units")
        used_cores = next(_used_cores(one, guest) for one in watched if guest in one.cpu_s)
        found.append(Rate((now.units - was.units) / (now.mono_s - was.mono_s), used_cores))
    return min(found, key=lambda one: one.units_per_s)


def _by_node(job: Reporting) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node, guest in zip(job.nodes, job.guests, strict=True):
        found.setdefault(node, []).append(guest)
    return found


def _used_cores(watched: Watched, guest: str) -> float:
    elapsed_s = watched.t_s[-1] - watched.t_s[0]
    if elapsed_s <= 0.0:
        raise RunError(f"guest {guest}: its CPU time was read once only: the agent could not sample in time")
    return (watched.cpu_s[guest][-1] - watched.cpu_s[guest][0]) / elapsed_s


async def _both(
    reports: Coroutine[Any, Any, dict[str, Progress]], *watching: Coroutine[Any, Any, Watched]
) -> tuple[dict[str, Progress], *tuple[Watched, ...]]:
    """Run all coroutines in parallel; the first failure cancels the others."""
    failed: TestbedError | None = None
    try:
        async with asyncio.TaskGroup() as group:
            reported = group.create_task(reports)
            watched = [group.create_task(watch) for watch in watching]
    except* TestbedError as failures:
        failed = next(error for error in failures.exceptions if isinstance(error, TestbedError))
    if failed is not None:  # an error raised in the clause above would be wrapped in a group again
        raise failed
    return (reported.result(), *(task.result() for task in watched))


async def _reported(
    job: Reporting, since: Mapping[str, Progress], by_s: float, limit_s: float, *, every_s: float = _POLL_S,
    least_s: float | None = None,
) -> dict[str, Progress]:  # fmt: skip
    """Return the progress after `by_s` seconds, once each task has reported again.

    By the task's own clock, the new report is at least `by_s` (or `least_s`) later than the report in `since`. Raises
    `RunError` for a task that has not reported within another `limit_s`.
    """
    least_s = by_s if least_s is None else least_s
    await asyncio.sleep(by_s)
    until_s = _now_s() + limit_s
    while True:
        found = await job.progress()
        late = [
            guest
            for guest, was in since.items()
            if found[guest].mono_s <= was.mono_s or found[guest].mono_s < was.mono_s + least_s
        ]
        if not late:
            return found
        if _now_s() > until_s:
            raise RunError(f"guest {late[0]}: it reported no progress within {limit_s:g} s")
        await asyncio.sleep(every_s)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
