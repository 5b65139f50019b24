"""How fast each kind of job works when it is alone at full yield: measured before a run, with the very programs.

A core's speed is not enough to know how long a job takes: a task that is capped at a quarter of a core starts each of
its slices with cold caches, and ranks of a parallel job wait for each other and may share a physical core.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from testbed.bus.messages import GuestEvent, ListGuests, guests_in
from testbed.control.fleet import Fleet
from testbed.control.guests import live_jobs
from testbed.control.operations import Operations
from testbed.control.scenario import Scenario
from testbed.workload.jobs import Job

SETTLE_S = 0.6
READ_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class Shape:
    """What decides how fast a job works alone: one task or several, and the CPU need of each."""

    parallel: bool
    cpu_need_frac: float

    @classmethod
    def of(cls, job: Job) -> Shape:
        """Return the shape of a job."""
        return cls(job.tasks > 1, job.cpu_need_frac)

    def __str__(self) -> str:
        return f"{'parallel' if self.parallel else 'serial'}, need {self.cpu_need_frac:g}"


def representatives(jobs: Sequence[Job], nodes: int) -> dict[Shape, Job]:
    """Return a job to measure for each shape: of the median size of its kind, at most a task a node, little memory."""
    by_shape: dict[Shape, list[Job]] = {}
    for job in jobs:
        by_shape.setdefault(Shape.of(job), []).append(job)
    return {
        shape: replace(
            min(alike, key=lambda job: job.mem_req_frac),
            job_id=number,
            tasks=min(nodes, median_low(job.tasks for job in alike)),
            submit_time_s=0.0,
            run_time_s=1e9,
        )
        for number, (shape, alike) in enumerate(by_shape.items())
    }


async def measure(
    jobs: Mapping[Shape, Job],
    fleet: Fleet,
    operations: Operations,
    scenario: Scenario,
    run_tag: str,
    core_units_per_s: float,
    addresses: Iterator[str],
) -> dict[Shape, float]:
    """Return work units a second of a core, as a task's share of a job alone sees it, by shape.

    Each job runs alone for `calibration_s` after its first progress; the slowest of its tasks counts. The rate is the
    program's own count by its own clock. `core_units_per_s` sizes the iterations.
    """
    rates = {}
    facts = fleet.facts(0)
    for shape, job in jobs.items():
        (live,) = live_jobs(
            [job],
            scenario,
            f"{run_tag}-alone",
            facts.cpus,
            facts.memory_mib,
            lambda _job: core_units_per_s,
            addresses,
        )
        nodes = [task % len(fleet.nodes) for task in range(job.tasks)]
        progressed = asyncio.Event()
        fleet.on_guest_event = _waiter(set(live.guests), progressed)
        live.running_on = tuple(nodes)
        live.verified = False  # it never ends; working out what it would come to takes the time that is measured here
        try:
            await operations.start(live, nodes, 1.0, ())
            async with asyncio.timeout(scenario.deadlines.command_s):
                await progressed.wait()
            await asyncio.sleep(SETTLE_S)
            before = await _progress(fleet, live.guests, nodes)
            await asyncio.sleep(scenario.programs.calibration_s)
            after = await _progress(fleet, live.guests, nodes)
        finally:
            fleet.on_guest_event = lambda _node, _event: None
            await asyncio.shield(operations.stop(live, nodes))
        slowest = min(
            (after[guest][0] - before[guest][0]) / (after[guest][1] - before[guest][1]) for guest in live.guests
        )
        rates[shape] = slowest / (job.cpu_need_frac * facts.cpus)
    return rates


def _waiter(guests: set[str], done: asyncio.Event) -> Callable[[int, GuestEvent], None]:
    def hear(_node: int, event: GuestEvent) -> None:
        if event.event == "progress":
            guests.discard(event.guest)
        if not guests:
            done.set()

    return hear


async def _progress(fleet: Fleet, guests: Sequence[str], nodes: Sequence[int]) -> dict[str, tuple[int, float]]:
    """Return units done and the program's clock in seconds, by guest."""
    found = {}
    for node in sorted(set(nodes)):
        there = guests_in(await fleet.call(node, ListGuests(), READ_DEADLINE_S))
        found.update({g.guest: (g.units_done, g.units_mono_ns / 1e9) for g in there if g.guest in guests})
    return found
