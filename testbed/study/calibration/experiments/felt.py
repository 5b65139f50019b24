"""Common parts of experiments with several guests: sizes that fit a lab, concurrent steps, and felt time.

The felt time of an interruption is the elapsed time that the job's own count of work does not explain:

    felt_s = (T2 - T1) - (u2 - u1) / rate - pause_s

(T1, u1) and (T2, u2) are two moments at which a report of `u` units arrives, before the interruption and well after it.
`rate` is that of the same guest in the window right before the interruption. Sources of error:

* Programs report their exact work twice a second, but a report arrives up to `EDGE_S` late. On average this shifts both
  moments alike.
* A cap grants CPU time in periods of 100 ms, so `rate`, over `WINDOW_S` or more, and the work after the pause are each
  known to a part of a period: together about ± 0.1 s under a low cap in one trial.
* Other load may take CPU time from the guest in only one of the two windows. A cap far below a core protects best from
  that: in eight trials each without any interruption on a busy machine, the felt time was -0.2 to 0.4 s at a cap of
  0.25 cores, and -1.5 to 0.1 s at a cap of one core.
* A permanent change of `rate` counts as felt time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Self, TypeVar

from testbed.lab.job import LabJob
from testbed.lab.lab import Lab
from testbed.study.calibration.experiment import LabFacts

MOST_CONCURRENT = 4
WINDOW_S = 1.4
SETTLE_S = 1.0
EDGE_S = 0.02  # a poll and its round trip
_MOST_MIB = 2048  # of all guests on one node: larger trials take long, and fits extrapolate linearly
_LEAST_MIB = 64
_MOST_CORES = 1.0

T = TypeVar("T")


def cores_of(lab: LabFacts) -> float:
    """Return the cores of a guest, the same for all numbers of guests at once, so that no other factor varies."""
    return min(_MOST_CORES, lab.cpus / MOST_CONCURRENT)


def least_mib(lab: LabFacts) -> int:
    """Return the memory in MiB of the smallest guest of an experiment."""
    return max(lab.floor_mib, _LEAST_MIB)


def most_mib(lab: LabFacts, concurrent: int) -> int:
    """Return the memory in MiB of the largest guests of which `concurrent` and their images fit on every node.

    Nodes may share one disk, so images of one node may take a quarter of its free space.
    """
    disk_mib = min(fact.image_free_mib for fact in lab.facts) // 4
    return min(lab.memory_mib, disk_mib, _MOST_MIB) // concurrent


def levels_mib(lab: LabFacts, concurrent: int, count: int) -> list[int]:
    """Return up to `count` memory sizes in MiB, in equal ratios from the smallest to the largest that fit, if any.

    Their ratio is at least 1.25, because closer sizes add no information.
    """
    least, most = least_mib(lab), most_mib(lab, concurrent)
    if most < least:
        return []
    if count == 1 or most < 1.25 * least:
        return [most]
    while (most / least) ** (1 / (count - 1)) < 1.25:
        count -= 1
    ratio = (most / least) ** (1 / (count - 1))
    return [least, *(round(least * ratio**step) for step in range(1, count - 1)), most]


def lacks(lab: LabFacts, capability: str, nodes: int = 1, guests: int = 1) -> str:
    """Return the reason why so many guests with a capability cannot be measured on so many nodes, or an empty text."""
    if len(lab.facts) < nodes:
        return f"it needs {nodes} nodes, there is {len(lab.facts)}"
    if not lab.able(capability):
        without = [node.name for node, fact in zip(lab.scenario.nodes, lab.facts, strict=True)
                   if capability not in fact.capabilities]  # fmt: skip
        return f"driver {lab.facts[0].driver} on {', '.join(without)} cannot do it (capability {capability!r})"
    if most_mib(lab, guests) < least_mib(lab):
        need, room = guests * least_mib(lab), most_mib(lab, 1)
        which = "a guest needs" if guests == 1 else f"{guests} guests at once need"
        return f"{which} {need} MiB of memory, a node has room for {room} MiB and their images"
    return ""


def emulated(lab: LabFacts) -> bool:
    """Return whether guests are emulated: each trial then takes many times as long, so there are fewer conditions."""
    return lab.able("accel:tcg")


def boot_s(lab: LabFacts) -> float:
    """Return the approximate start time of a small guest in seconds; for older agents it depends on capabilities."""
    told = [fact.guest_boot_s for fact in lab.facts if fact.guest_boot_s is not None]
    return max(told) if told else 6.0 if emulated(lab) else 2.0 if lab.able("whole") else 0.5


def first_progress_s(lab: LabFacts) -> float:
    """Return the approximate seconds from the start of a small guest to its first report; it reports twice a second."""
    return boot_s(lab) + 0.5


def lab_of(lab: Lab) -> LabFacts:
    """Return the facts of an open lab."""
    return LabFacts(lab.scenario, lab.facts)


async def together(works: Sequence[Awaitable[T]]) -> list[T]:
    """Run awaitables concurrently; the first failure cancels the others, waits for them, and is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def group(specimens: Sequence[LabJob]) -> AsyncIterator[tuple[LabJob, ...]]:
    """Hold several jobs; at the end of the context all are stopped concurrently, also after errors."""
    async with AsyncExitStack() as stack:
        for specimen in specimens:
            await stack.enter_async_context(specimen)
        try:
            yield tuple(specimens)
        finally:
            await asyncio.shield(together([specimen.stop() for specimen in specimens]))


@dataclass(frozen=True, slots=True)
class Pace:
    """The rate and the progress of a job before an interruption: `rate` in units/s, and `units` at second `at_s`."""

    rate: float
    at_s: float
    units: int

    @classmethod
    async def of(cls, specimen: LabJob) -> Self:
        """Measure the pace of a working job over `WINDOW_S`."""
        from_s, before = await specimen.edge()
        await asyncio.sleep(WINDOW_S)
        at_s, units = await specimen.edge()
        return cls((units - before) / (at_s - from_s), at_s, units)

    async def felt_s(self, specimen: LabJob, pause_s: float = 0.0) -> float:
        """Let an interrupted job work for `SETTLE_S`; return its felt time in seconds without `pause_s`; see above."""
        await asyncio.sleep(SETTLE_S)
        at_s, units = await specimen.edge()
        return at_s - self.at_s - (units - self.units) / self.rate - pause_s
