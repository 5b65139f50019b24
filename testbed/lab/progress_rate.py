"""How fast a job progresses, by its programs' own count and clocks, and how much CPU time it uses for that."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from testbed.errors import RunError, TestbedError
from testbed.lab.bench import Bench, Watched
from testbed.lab.specimen import Progress, Specimen

WINDOW_S = 1.0  # two tellings of a program
SETTLE_S = 0.25  # after a change of caps: two of their periods
_SAMPLE_S = 0.25
_POLL_S = 0.05  # asking costs the nodes CPU time, too


@dataclass(frozen=True, slots=True)
class Rate:
    """Work units a second of the slowest task by its program's clock, and the cores which that task used meanwhile."""

    units_per_s: float
    used_cores: float

    @property
    def units_per_cpu_s(self) -> float:
        """Work units a second of CPU time; raises `RunError` if none was counted."""
        if self.used_cores <= 0.0:
            raise RunError("no CPU time was counted while the guest progressed")
        return self.units_per_s / self.used_cores


async def measure_rate(bench: Bench, job: Specimen, window_s: float = WINDOW_S, settle_s: float = SETTLE_S) -> Rate:
    """Wait `settle_s`, then measure over at least `window_s`, from what each task tells next to what it tells then.

    Programs tell how far they are every half a second or less often, with the time by a clock of their own; CPU time is
    read by the clock of each node meanwhile: how late the controller hears of it changes nothing. Raises `RunError` if
    a task falls silent, or if it made no progress.
    """
    await asyncio.sleep(settle_s)
    limit_s = bench.scenario.deadlines.command_s
    begin = await _told(job, await job.progress(), 0.0, limit_s)
    end, *watched = await _both(
        _told(job, begin, window_s, limit_s),
        *(bench.watch(node, guests, min(_SAMPLE_S, window_s), window_s) for node, guests in _by_node(job).items()),
    )
    rates = []
    for guest, was in begin.items():
        now = end[guest]
        if now.units <= was.units:
            raise RunError(f"guest {guest}: no progress within {now.mono_s - was.mono_s:.3g} s, at {now.units} units")
        used_cores = next(_used_cores(one, guest) for one in watched if guest in one.cpu_s)
        rates.append(Rate((now.units - was.units) / (now.mono_s - was.mono_s), used_cores))
    return min(rates, key=lambda rate: rate.units_per_s)


def _by_node(job: Specimen) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for node, guest in zip(job.nodes, job.guests, strict=True):
        found.setdefault(node, []).append(guest)
    return found


def _used_cores(watched: Watched, guest: str) -> float:
    elapsed_s = watched.t_s[-1] - watched.t_s[0]
    if elapsed_s <= 0.0:
        raise RunError(f"guest {guest}: its CPU time was read once only: the agent could not sample in time")
    return (watched.cpu_s[guest][-1] - watched.cpu_s[guest][0]) / elapsed_s


async def _both(
    telling: Coroutine[Any, Any, dict[str, Progress]], *watching: Coroutine[Any, Any, Watched]
) -> tuple[dict[str, Progress], *tuple[Watched, ...]]:
    """Run them side by side; the first failure cancels the others."""
    failed: TestbedError | None = None
    try:
        async with asyncio.TaskGroup() as group:
            told = group.create_task(telling)
            watched = [group.create_task(watch) for watch in watching]
    except* TestbedError as failures:
        failed = next(error for error in failures.exceptions if isinstance(error, TestbedError))
    if failed is not None:  # raised in the clause above, it would come out in a group again
        raise failed
    return (told.result(), *(task.result() for task in watched))


async def _told(job: Specimen, since: Mapping[str, Progress], by_s: float, limit_s: float) -> dict[str, Progress]:
    """Return how far each task is once each has reported again, by its own clock at least `by_s` after `since`.

    Raises `RunError` for a task that has not within `limit_s` after that.
    """
    await asyncio.sleep(by_s)
    until_s = _now_s() + limit_s
    while True:
        found = await job.progress()
        late = [
            guest
            for guest, was in since.items()
            if found[guest].mono_s <= was.mono_s or found[guest].mono_s < was.mono_s + by_s
        ]
        if not late:
            return found
        if _now_s() > until_s:
            raise RunError(f"guest {late[0]}: it told nothing of its progress within {limit_s:g} s")
        await asyncio.sleep(_POLL_S)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
