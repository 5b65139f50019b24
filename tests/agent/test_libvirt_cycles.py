"""Real virtual machines, saved and restored repeatedly under small caps: none fails, falls silent or loses work.

`DFRS_GUEST_CYCLES` is the number of cycles (default 60), half of them of a single guest, half of a job of two ranks.
`DFRS_GUEST_CYCLES_RESULT` is a file for the counts, as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest
from support.agent.libvirt_nodes import THROTTLED_CORES, Node, on_both, parallel, serial, start_job, twin
from support.libvirt_box import libvirt_box, needs_hypervisor
from support.live import HANG_S

from node_agent.drivers.protocol import DriverError, DriverEvent
from testbed.bus.messages import GuestSpec

pytestmark = [needs_hypervisor, pytest.mark.slow, pytest.mark.long]
CYCLES = int(os.environ.get("DFRS_GUEST_CYCLES", "60"))
CYCLES_OF_A_LIFE = 10
UNITS = 120_000  # usually more than a guest does in these cycles
CAPS_CORES = (0.1, 0.1, 0.1, 0.2, 0.3, 0.5, 1.0)  # throttled guests fell silent most often
SAVED_AGAIN_AT_ONCE = 0.4  # fraction of the cycles


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    with libvirt_box(f"t{os.getpid():x}c", tmp_path_factory.mktemp("lab")) as journal:
        yield journal


@dataclass
class Count:
    """The counts over all cycles of one kind."""

    cycles: int = 0
    at_once: int = 0  # cycles that saved again before the guests had reported anything
    lives: int = 0  # guests or jobs that were started, and ended with the right checksum
    ended_early: int = 0  # lives that ended before all of their cycles
    failed: list[str] = field(default_factory=list)
    lost_work: list[str] = field(default_factory=list)
    healed: list[dict[str, object]] = field(default_factory=list)
    told_after_s: list[float] = field(default_factory=list)  # from the release to the first progress


class Life:
    """One guest or job across its saves and restores."""

    def __init__(self, nodes: tuple[Node, Node], specs: list[GuestSpec], count: Count) -> None:
        self._nodes = nodes
        self.members = [(nodes[number % 2], spec) for number, spec in enumerate(specs)]
        self._count = count
        self._units = {spec.guest: 0 for spec in specs}  # the highest report of each guest

    async def begin(self) -> None:
        if len(self.members) == 1:
            ((place, spec),) = self.members
            await place.driver.start(spec, THROTTLED_CORES)
        else:
            await start_job(self.members, THROTTLED_CORES)
        await self.told()

    def take(self, driver_event: DriverEvent) -> None:
        """Record a report of a guest; its work must not decrease."""
        units, guest = driver_event.detail.get("units"), driver_event.guest
        if isinstance(units, int):
            if units < self._units[guest]:
                self._count.lost_work.append(f"{guest}: {units} units after {self._units[guest]}")
            self._units[guest] = max(self._units[guest], units)
        if driver_event.event == "healed":
            self._count.healed.append({"guest": guest, **driver_event.detail})
        elif driver_event.event == "failed":
            self._count.failed.append(f"{guest}: {driver_event.detail}")

    def drain(self) -> None:
        """Record the reports so far, except for ends."""
        for place, spec in self.members:
            for driver_event in [one for one in place.driver_events if one.guest == spec.guest]:
                if driver_event.event in ("progress", "healed", "drift"):
                    place.driver_events.remove(driver_event)
                    self.take(driver_event)

    async def told(self) -> None:
        """Wait until each member has reported progress or its end; the report of an end stays in the queue."""
        for place, spec in self.members:
            driver_event = await place.until(spec.guest, "progress", "done", "failed")
            if driver_event.event == "progress":
                self.take(driver_event)
            else:
                place.hear(driver_event)

    async def cycle(self, cap_cores: float, *, move: bool, at_once: bool, number: int) -> bool:
        """Save and restore all members; return whether they are still at work. Raises `DriverError`."""
        images = [place.images / f"{spec.guest}-{number}.img" for place, spec in self.members]
        try:
            await together(place.driver.hold(spec.guest) for place, spec in self.members)
            await together(
                place.driver.save(spec.guest, None, image)
                for (place, spec), image in zip(self.members, images, strict=True)
            )
        except DriverError:
            await self._go_on(images)
            return False
        self.drain()
        if move:
            one, two = self._nodes
            self.members = [(two if place is one else one, spec) for place, spec in self.members]
        await together(
            place.driver.restore(spec, cap_cores, image)
            for (place, spec), image in zip(self.members, images, strict=True)
        )
        begin_s = time.monotonic()
        await together(place.driver.release(spec.guest) for place, spec in self.members)
        if at_once:
            self._count.at_once += 1
        else:
            await self.told()
            self._count.told_after_s.append(round(time.monotonic() - begin_s, 3))
        for image in images:
            image.unlink()
        self._count.cycles += 1
        return not any(
            one.event in ("done", "failed") for place, spec in self.members for one in place.driver_events
            if one.guest == spec.guest
        )  # fmt: skip

    async def _go_on(self, images: list[Path]) -> None:
        """Let the other members end, too, after one ended by itself before its hold or save."""
        for (place, spec), image in zip(self.members, images, strict=True):
            sample = place.sample(spec.guest)
            if sample is None and image.exists():
                await place.driver.restore(spec, 1.0, image)
            with contextlib.suppress(DriverError):  # it has ended
                await place.driver.release(spec.guest)

    async def end(self) -> None:
        """Let all members work until their end, and compare their checksums."""
        for place, spec in self.members:
            with contextlib.suppress(DriverError):  # it has ended
                await place.driver.set_cap(spec.guest, 1.0)
        found = [await self._checksum(place, spec) for place, spec in self.members]
        for (_, spec), checksum in zip(self.members, found, strict=True):
            expected = await asyncio.to_thread(twin, spec)
            if checksum is not None and checksum != expected:
                self._count.lost_work.append(f"{spec.guest}: checksum {checksum}, expected {expected}")

    async def _checksum(self, place: Node, spec: GuestSpec) -> object:
        driver_event = await place.until(spec.guest, "done", "failed")
        self.drain()  # earlier reports
        self.take(driver_event)
        return driver_event.detail.get("checksum")


async def together(doing: Iterator[object]) -> None:
    """Wait for all coroutines, then raise the first error, if any."""
    results = await asyncio.gather(*doing, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


@contextlib.asynccontextmanager
async def sampled(*nodes: Node) -> AsyncIterator[None]:
    """Sample as the agents do, because samples detect silent guests."""

    async def sample() -> None:
        while True:
            for place in nodes:
                place.driver.sample()
            await asyncio.sleep(1.0)  # speed: as often as an agent

    sampling = asyncio.create_task(sample())
    try:
        yield
    finally:
        sampling.cancel()
        await asyncio.wait((sampling,))


async def lives(nodes: tuple[Node, Node], specs: list[GuestSpec], cycles: int, seed: int, count: Count) -> None:
    """Run guests or jobs of these specs one after the other until the number of cycles is reached."""
    chance = random.Random(seed)  # noqa: S311  # the same cycles each time
    while count.cycles < cycles and not count.failed:
        life = Life(nodes, specs, count)
        count.lives += 1
        assert count.lives <= cycles, f"guests end before their first cycle: {count}"
        await life.begin()
        number, works = 0, True
        while works and number < CYCLES_OF_A_LIFE and count.cycles < cycles:
            number += 1
            at_once = number < CYCLES_OF_A_LIFE and chance.random() < SAVED_AGAIN_AT_ONCE
            cap_cores, move = chance.choice(CAPS_CORES), chance.random() < 0.5
            works = await life.cycle(cap_cores, move=move, at_once=at_once, number=number)
        count.ended_early += not works
        await life.end()


def tell(begin_s: float, seed: int, counts: dict[str, Count]) -> None:
    """Print the counts, and write them to the file of results if there is one."""
    result = {"seed": seed, "elapsed_s": round(time.monotonic() - begin_s, 1)}
    text = json.dumps(result | {kind: asdict(count) for kind, count in counts.items()}, indent=1)
    sys.stdout.write(f"{text}\n")
    if file := os.environ.get("DFRS_GUEST_CYCLES_RESULT"):
        Path(file).write_text(f"{text}\n", encoding="utf-8")


def test_guests_live_through_many_saves_and_restores(lab: object, tmp_path: Path):
    seed = int(os.environ.get("DFRS_GUEST_CYCLES_SEED", "1"))
    serials, jobs = Count(), Count()

    async def play(one: Node, two: Node) -> None:
        async with asyncio.timeout(HANG_S * max(1, CYCLES // 60)), sampled(one, two):
            await together(iter((
                lives((one, two), [serial(UNITS)], CYCLES - CYCLES // 2, seed, serials),
                lives((one, two), parallel(UNITS // 2, 2), CYCLES // 2, seed + 1, jobs),
            )))  # fmt: skip

    begin_s = time.monotonic()
    try:
        on_both(lab, tmp_path, play)
    finally:
        tell(begin_s, seed, {"serial": serials, "mpi": jobs})
    assert (serials.failed, jobs.failed) == ([], [])
    assert (serials.lost_work, jobs.lost_work) == ([], [])
    assert (serials.cycles, jobs.cycles) == (CYCLES - CYCLES // 2, CYCLES // 2)
