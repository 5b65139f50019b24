"""Tests for every driver, independent of its guests and its optional protocols."""

from __future__ import annotations

import asyncio
import math
import re
from pathlib import Path

import pytest

from node_agent.abilities import PROTOCOLS
from node_agent.drivers.protocol import Driver, DriverError
from testbed.bus.messages import CapChange, Watch
from testbed.bus.traits import DriverTraits
from testbed.testing.accuracy import Accuracy, Window
from testbed.testing.live import HANG_S, until
from testbed.testing.nodes import Node
from testbed.testing.suite import DriverSuite

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+-]{0,126}")  # names and capabilities that nodes announce
_DERIVED = {"start", "cap", "whole", *PROTOCOLS}  # capabilities that follow from the protocols

MOST_CALIBRATIONS = 3


class CoreConformance(DriverSuite):
    """Tests of `node_agent.drivers.protocol.Driver`."""

    def test_what_it_declares_and_finds_is_what_others_rely_on(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            driver, facts = node.driver, node.facts
            assert isinstance(driver, Driver)
            assert isinstance(driver.traits, DriverTraits)
            assert _WORD.fullmatch(driver.name)
            assert set(facts.lacks) == self.lacks
            for ability, why in facts.lacks.items():
                assert isinstance(driver, PROTOCOLS.get(ability, Driver))
                assert why
            implemented = {ability for ability, protocol in PROTOCOLS.items() if isinstance(driver, protocol)}
            assert implemented - self.lacks == PROTOCOLS.keys() & set(node.capabilities)
            assert not _DERIVED & set(facts.capabilities)
            assert all(map(_WORD.fullmatch, [*node.capabilities, *facts.programs]))
            assert not facts.programs or "eatcpu" in facts.programs
            assert 0 <= facts.floor_mib <= self.memory_mib
            assert math.isfinite(facts.boot_s)
            assert facts.boot_s >= 0
            if "save" in node.capabilities:
                assert f"save:{node.saving.images.name}" in node.capabilities

        self.on_nodes(tmp_path, 1, scenario)

    def test_a_driver_that_is_not_open_is_closed_all_the_same(self, tmp_path: Path) -> None:
        """An agent closes its driver also after a failed `open`."""

        async def scenario() -> None:
            (node,) = self.nodes(tmp_path, 1)
            await node.driver.close()
            await node.open()
            await node.driver.close()
            await node.driver.close()
            assert node.driver.sample() == []

        self.run(scenario())

    def test_a_guest_starts_progresses_and_is_done(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            spec = self.spec("a", 0.3)
            await node.driver.start(spec, 1.0)
            first = await node.until("a", "progress")
            assert 0 <= int(str(first.detail["units"])) <= spec.program.work_units
            done = await node.until("a", "done")
            assert done.detail["units"] == spec.program.work_units
            assert done.mono_ns > first.mono_ns
            assert bool(done.detail.get("checksum")) or "checksums" not in node.capabilities
            assert node.driver_events == []
            assert node.state("a") is None

        self.on_nodes(tmp_path, 1, scenario)

    def test_what_a_guest_used_only_grows_while_it_works(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            spec = self.spec("a")
            await node.driver.start(spec, 1.0)
            await node.until("a", "progress")
            (first,) = node.driver.sample()
            await node.work("a", 0.2)
            await until(lambda: node.driver.sample()[0].units_done > first.units_done, "progress of the guest")
            (last,) = node.driver.sample()
            assert (first.guest, first.state, last.state) == ("a", "running", "running")
            assert last.cpu_s >= first.cpu_s + 0.2
            assert last.units_mono_ns > first.units_mono_ns
            assert 0 < last.rss_mib < 2 * self.node_memory_mib

        self.on_nodes(tmp_path, 1, scenario)

    def test_caps_are_read_back(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            spec = self.spec("a")
            most_cores = spec.program.workers
            await node.driver.start(spec, 0.25)
            assert await node.caps("a") == (pytest.approx(0.25), 0.25)
            for cap_cores in (0.5, 1.0, 0.1, 2.0):
                in_force = pytest.approx(min(cap_cores, most_cores))
                assert await node.driver.set_cap("a", cap_cores) == in_force
                assert await node.caps("a") == (in_force, cap_cores)

        self.on_nodes(tmp_path, 1, scenario)

    def test_an_order_that_comes_too_late_fails_after_the_end_was_told(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            spec = self.spec("a", 1.0)  # speed: a short guest, because the test sends an order after its end
            await node.driver.start(spec, 1.0)

            async def go_on() -> None:
                while True:
                    await node.driver.set_cap("a", 1.0)
                    await asyncio.sleep(0.001)  # speed: a short pause between orders, until one of them fails

            with pytest.raises(DriverError):
                await asyncio.wait_for(go_on(), HANG_S)
            assert node.events("a")[-1] == "done"

        self.on_nodes(tmp_path, 1, scenario)

    def test_stop_destroys_once_and_is_no_error_twice(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            await node.driver.start(self.spec("a"), 1.0)
            await node.driver.stop("a")
            await node.driver.stop("a")
            assert node.state("a") is None
            assert not {"done", "failed"} & set(node.events("a"))

        self.on_nodes(tmp_path, 1, scenario)

    def test_what_a_killed_agent_left_is_found_and_removed_by_another(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            await node.driver.start(self.spec("a"), 1.0)
            await node.until("a", "progress")
            other = self.make_again(node)
            found = await other.sweep(node.budget, dry_run=True)
            assert bool(found) is self.leaves
            assert node.state("a") == "running"
            assert await other.sweep(node.budget) == found
            if self.leaves:
                await node.until("a", "failed")
            assert await other.sweep(node.budget) == []

        self.on_nodes(tmp_path, 1, scenario)

    def test_orders_that_make_no_sense_are_refused(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            with pytest.raises(DriverError, match="guest x"):
                await node.driver.set_cap("x", 1.0)
            await node.driver.start(self.spec("a"), 1.0)
            with pytest.raises(DriverError, match="there already"):
                await node.driver.start(self.spec("a"), 1.0)
            assert node.state("a") == "running"

        self.on_nodes(tmp_path, 1, scenario)

    def test_calibration_gives_the_rate_of_guests(self, tmp_path: Path, accuracy: Accuracy) -> None:
        async def scenario(node: Node) -> None:
            # other load, also on a sibling CPU of the same core, can only lower both rates: take the greatest of each
            window, calibrated, rate = Window(), 0.0, 0.0
            for _ in range(MOST_CALIBRATIONS):
                calibrated = max(calibrated, await node.driver.calibrate(0.3))
                await node.driver.start(self.spec("a"), 1.0)
                rate = max(rate, await node.rate("a", 2.0))
                await node.driver.stop("a")
                if 0.75 <= calibrated / rate <= 1.33:
                    return
            # a bound for any machine, however busy: both rates are of the same work in the same unit
            assert self.least_calibrated_frac < calibrated / rate < 4
            accuracy.check("calibrated rate over that of a guest", calibrated / rate, 0.75, 1.33, window)

        self.on_nodes(tmp_path, 1, scenario)

    def test_a_cap_change_shows_in_what_is_watched(self, tmp_path: Path, accuracy: Accuracy) -> None:
        every_s, for_s, change_s = 0.02, 4.0, 2.0

        async def scenario(node: Node) -> None:
            await node.driver.start(self.spec("a"), 0.8)
            await node.until("a", "progress")
            meter, window = node.meter("a"), Window()
            found = await node.watch(
                Watch(guests=("a",), every_s=every_s, for_s=for_s, caps=(CapChange(after_s=change_s, caps={"a": 0.3}),))
            )
            t_s, cpu_s, units = found.t_s, found.cpu_s["a"], found.units["a"]
            (change,) = found.cap_changes
            assert change.caps == {"a": pytest.approx(0.3)}
            assert change_s <= change.begin_s <= change.end_s
            assert len(t_s) == len(cpu_s) == len(units) > 1
            assert t_s == sorted(t_s)
            assert all(at_s >= step * every_s - 1e-3 for step, at_s in enumerate(t_s))  # no sample is early
            accuracy.check("samples", len(t_s), self.watched_frac * for_s / every_s, for_s / every_s + 1, window)
            accuracy.check("the last sample", t_s[-1], for_s - 0.1, for_s + 0.5, window)
            assert cpu_s == sorted(cpu_s)
            assert units == sorted(units)
            assert cpu_s[-1] > cpu_s[0]
            await until(lambda: meter().units > units[0], "progress of a guest that is watched")

            for cap_cores, from_s, to_s in (
                (0.8, 0.3, change.begin_s),
                (0.3, change.end_s + 0.4, for_s),
            ):
                inside = [number for number, at_s in enumerate(t_s[:-1]) if from_s <= at_s <= to_s]
                accuracy.check(f"samples at a cap of {cap_cores}", len(inside), 5, for_s / every_s, window)
                if len(inside) < 2:
                    continue  # this process was stopped for so long that samples are missing
                first, last = inside[0], inside[-1]
                used_s = cpu_s[last] - cpu_s[first]
                if "cap:duty" not in node.capabilities:  # this process enforces duty caps, and may be late
                    # a sample's CPU time is read between its own time and that of the next sample; 0.1 s is more than
                    # two quota periods can add at the ends of the interval
                    assert used_s <= cap_cores * (t_s[last + 1] - t_s[first]) + 0.1, (cap_cores, used_s)
                cores = used_s / (t_s[last] - t_s[first])
                accuracy.check(f"cores at a cap of {cap_cores}", cores, 0.75 * cap_cores, cap_cores + 0.08, window)
            await node.driver.stop("a")
            with pytest.raises(DriverError, match="guest a"):
                node.meter("a")

        self.on_nodes(tmp_path, 1, scenario)

    def test_a_guest_that_ends_ends_its_watch(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            await node.driver.start(self.spec("a"), 1.0)
            watching = asyncio.create_task(
                node.watch(Watch(guests=("a",), every_s=0.02, for_s=120.0))  # the longest watch that is allowed
            )
            await asyncio.sleep(0)
            await node.driver.stop("a")
            with pytest.raises(DriverError, match="guest a has ended"):
                await watching

        self.on_nodes(tmp_path, 1, scenario)
