"""The conformance suite for the null driver, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path

import msgspec
import pytest

from node_agent.drivers.null import DIRTY_PERIOD_S, UNITS_PER_CORE_S, NullDriver
from node_agent.drivers.protocol import Driver
from testbed.errors import UserError
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.testing import DriverConformance
from testbed.testing.nodes import Node


class TestNullDriver(DriverConformance):
    leaves = False
    lacks = frozenset({"live"})

    def make(self) -> Driver:
        return NullDriver()

    def run(self, main: Coroutine[None, None, None]) -> None:
        run_in_virtual_time(main)

    def test_an_unknown_extra_is_named(self) -> None:
        with pytest.raises(UserError, match="extras = 'fast': expected some of whole, live, dirty"):
            NullDriver("fast")

    def test_time_to_the_end_is_work_over_cap(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            now_s = asyncio.get_running_loop().time
            begin_s = now_s()
            await node.driver.start(self.spec("a", 8.0), 0.5)
            await asyncio.sleep(4.0)  # 2 of 8 seconds' work
            await node.driver.set_cap("a", 2.0)  # more than the task can use: as 1.0
            await asyncio.sleep(1.0)  # 3 of 8
            await node.driver.hold("a")
            await asyncio.sleep(100.0)
            (sample,) = node.driver.sample()
            assert sample.cpu_s == pytest.approx(3.0)
            assert sample.units_done == pytest.approx(3.0 * UNITS_PER_CORE_S, abs=1)
            await node.driver.release("a")
            await node.until("a", "done")
            assert now_s() - begin_s == pytest.approx(4 + 1 + 100 + 5)

        self.on_nodes(tmp_path, 1, scenario)

    def test_a_task_with_a_pace_needs_no_more_than_it_and_less_at_times(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            now_s = asyncio.get_running_loop().time
            spec = self.spec("a", 8.0)
            units = int(UNITS_PER_CORE_S / 10)  # work of a tenth of a second in each fifth of a second: half of a core
            program = msgspec.structs.replace(
                spec.program, units_per_iteration=units, pace_ns=200_000_000, profile="1,0.5@0.5"
            )
            begin_s = now_s()
            await node.driver.start(msgspec.structs.replace(spec, program=program, watch_s=5.0), 1.0)
            await asyncio.sleep(4.0)  # virtual time: half of a core for 4 seconds
            await node.driver.set_cap("a", 0.25)
            await asyncio.sleep(8.0)  # 4 of 16 seconds at half pace
            (sample,) = node.driver.sample()
            assert (sample.cpu_s, sample.throttled_s) == (pytest.approx(2.0 + 2.0), pytest.approx(6.0))
            assert sample.units_done == pytest.approx(4.0 * UNITS_PER_CORE_S, abs=1)
            await node.until("a", "done")  # from here on it needs the quarter that it has
            assert now_s() - begin_s == pytest.approx(4 + 8 + 8)

        self.on_nodes(tmp_path, 1, scenario)


class TestNullDriverWithWholeImagesAndLiveMigration(TestNullDriver):
    lacks = frozenset()

    def make(self) -> Driver:
        return NullDriver("whole,live")


class TestNullDriverWithGuestsThatWrite(TestNullDriverWithWholeImagesAndLiveMigration):
    def make(self) -> Driver:
        return NullDriver("whole,live,dirty")

    def test_a_guest_writes_to_its_memory_while_it_works(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            spec = self.spec("a", 8.0)
            await node.driver.start(msgspec.structs.replace(spec, writes=True), 1.0)
            full_mib_per_s = spec.memory_mib * spec.program.touched_frac / DIRTY_PERIOD_S
            (sample,) = node.driver.sample()
            assert sample.dirty_mib_per_s == pytest.approx(full_mib_per_s, rel=0.01)
            await node.driver.set_cap("a", 0.25)
            (sample,) = node.driver.sample()
            assert sample.dirty_mib_per_s == pytest.approx(full_mib_per_s / 4, rel=0.01)
            await node.driver.hold("a")
            (sample,) = node.driver.sample()
            assert sample.dirty_mib_per_s == 0.0

        self.on_nodes(tmp_path, 1, scenario)
