"""The CPU time of the controller and of its broker, as points of the run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from testbed.bus.mosquitto import find_mosquitto, mosquitto_broker
from testbed.control.own_cpu import OwnCpu


class Points:
    """A recorder that keeps points, and signals each."""

    def __init__(self) -> None:
        self.taken: list[Mapping[str, float]] = []
        self.there = asyncio.Event()

    def point(self, measurement: str, tags: Mapping[str, str], fields: Mapping[str, float]) -> None:
        assert (measurement, tags) == ("controller", {})
        self.taken.append(fields)
        self.there.set()


async def first_point() -> Mapping[str, float]:
    points = Points()
    running = asyncio.create_task(OwnCpu(points).run())  # type: ignore[arg-type]  # the only used part of a recorder
    await points.there.wait()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    return points.taken[0]


def test_without_a_broker_of_its_own_there_is_its_own_time_alone() -> None:
    found = asyncio.run(first_point())
    assert found["cpu_s"] > 0.0
    assert found["broker_cpu_s"] == 0.0


def test_the_time_of_a_broker_that_it_started_is_told(tmp_path: Path) -> None:
    program = find_mosquitto()
    if program is None:
        pytest.skip("Mosquitto is not installed: scripts/debian-packages test installs it")

    async def main() -> float:
        async with mosquitto_broker(program, tmp_path / "broker"):
            broker = OwnCpu(Points())  # type: ignore[arg-type]  # as above
            assert broker._broker is not None
            return (await first_point())["broker_cpu_s"]

    assert asyncio.run(main()) >= 0.0
