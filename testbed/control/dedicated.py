"""How fast each kind of job works when it is alone at full yield: measured before a run, with the very programs.

A core's speed is not enough to know how long a job takes: a task that is capped at a quarter of a core starts each of
its slices with cold caches, and ranks of a parallel job wait for each other and may share a physical core.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from testbed.bus.guest_details import GuestReport
from testbed.bus.messages import ListGuests
from testbed.errors import RunError
from testbed.lab.fleet import Fleet
from testbed.lab.guests import prepare_jobs
from testbed.lab.job_guests import JobGuests, Unrecorded
from testbed.lab.operations import Operations
from testbed.lab.replies import Guests, ask
from testbed.limits import LEAST_UNITS_PER_CORE_S, MOST_UNITS_PER_CORE_S
from testbed.scenario.schema import Scenario
from testbed.workload.jobs import Job

SETTLE_S = 0.6
READ_DEADLINE_S = 10.0
ENDLESS_WALL_S = 1e9


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


def core_rate(node: str, reply: Mapping[str, object]) -> float:
    """Return work units a second of a core, from a node's reply to `Calibrate`; raises `RunError` if it is absurd."""
    return _rate(f"node {node}: its agent says units_per_core_s", reply.get("units_per_core_s"))


def _rate(what: str, value: object) -> float:
    if isinstance(value, int | float) and LEAST_UNITS_PER_CORE_S <= value <= MOST_UNITS_PER_CORE_S:
        return float(value)
    bounds = f"{LEAST_UNITS_PER_CORE_S:g} to {MOST_UNITS_PER_CORE_S:g} work units a second"
    raise RunError(f"{what} = {value!r}: expected {bounds}")


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
    for shape, kind in jobs.items():
        job = replace(kind, run_time_s=min(kind.run_time_s, ENDLESS_WALL_S * scenario.time_scale))
        (prepared,) = prepare_jobs(
            [job],
            scenario,
            f"{run_tag}-alone",
            facts.cpus,
            facts.memory_mib,
            lambda _job: core_units_per_s,
            addresses,
        )
        nodes = tuple(task % len(fleet.nodes) for task in range(job.tasks))
        # not verified: it never ends, and working out what it would come to takes the time that is measured here
        live = JobGuests(specs=prepared.specs, state=Unrecorded(running_on=nodes), verified=False)
        progressed = asyncio.Event()
        fleet.on_guest_event = _waiter(set(zip(nodes, live.guests, strict=True)), progressed)
        try:
            await operations.start(live, nodes, 1.0, ())
            async with asyncio.timeout(scenario.deadlines.command_s):
                await progressed.wait()
            await asyncio.sleep(SETTLE_S)
            before = await _progress(fleet, live.guests, nodes)
            await asyncio.sleep(scenario.programs.calibration_s)
            async with asyncio.timeout(scenario.deadlines.command_s):
                while not _moved(before, after := await _progress(fleet, live.guests, nodes)):  # noqa: ASYNC110  # see below
                    await asyncio.sleep(SETTLE_S)  # progress sets no event here: nodes report it when they are asked
        except TimeoutError:
            raise RunError(f"{shape}: its guests told no progress within {scenario.deadlines.command_s:g} s") from None
        finally:
            fleet.on_guest_event = lambda _node, _event: None
            await asyncio.shield(operations.stop(live, nodes))
        slowest = min(
            _units_per_s(fleet.nodes[node].name, guest, before, after)
            for node, guest in zip(nodes, live.guests, strict=True)
        )
        rates[shape] = slowest / (job.cpu_need_frac * facts.cpus)
    return rates


def _moved(before: Mapping[str, tuple[int, float]], after: Mapping[str, tuple[int, float]]) -> bool:
    """Whether each guest in both readings has reported progress between them; `_units_per_s` refuses others."""
    return all(after[guest][1] > before[guest][1] for guest in before.keys() & after.keys())


def _units_per_s(
    node: str, guest: str, before: Mapping[str, tuple[int, float]], after: Mapping[str, tuple[int, float]]
) -> float:
    if guest not in before or guest not in after:
        raise RunError(f"node {node}: {guest} is not among its guests while its rate is measured")
    (units_before, begin_s), (units_after, end_s) = before[guest], after[guest]
    if end_s <= begin_s:
        raise RunError(f"node {node}: the clock of {guest} stands still: its rate cannot be measured")
    return _rate(f"node {node}: rate of {guest}", (units_after - units_before) / (end_s - begin_s))


def _waiter(guests: set[tuple[int, str]], done: asyncio.Event) -> Callable[[int, GuestReport], None]:
    """Return what hears that all guests, each on its node, have progressed."""

    def hear(node: int, event: GuestReport) -> None:
        if event.event == "progress":
            guests.discard((node, event.guest))
        if not guests:
            done.set()

    return hear


async def _progress(fleet: Fleet, guests: Sequence[str], nodes: Sequence[int]) -> dict[str, tuple[int, float]]:
    """Return units done and the program's clock in seconds, by guest."""
    found = {}
    for node in sorted(set(nodes)):
        there = await ask(fleet, node, ListGuests(), Guests, READ_DEADLINE_S)
        found.update({g.guest: (g.units_done, g.units_mono_ns / 1e9) for g in there.guests if g.guest in guests})
    return found
