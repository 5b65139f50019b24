"""Reports of programs about their iterations, from the program to the sample."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from support.agent.process_suite import ProcessSuite as _Base
from support.live import HANG_S

from node_agent.guests.channel import ChannelError, decode
from node_agent.guests.pace import supersteps_of
from node_agent.programs import pace as pace_module
from node_agent.programs.pace import Pace
from node_agent.telemetry import GuestSampler
from testbed.bus.telemetry import GuestSample, Supersteps
from testbed.control.tracker import StepMeter
from testbed.testing.nodes import Node

STEPS = {"steps": 3, "longest_s": 0.5, "compute_s": 1.0, "comm_s": 0.25}
PROGRESS = {"kind": "progress", "units": 7, "mono_ns": 9}


def test_a_program_of_an_earlier_version_is_understood_and_a_mistyped_field_is_not():
    assert decode(json.dumps({**PROGRESS, **STEPS}).encode()).fields == {"units": 7, "mono_ns": 9, **STEPS}
    old = decode(json.dumps(PROGRESS).encode())
    assert old.fields == {"units": 7, "mono_ns": 9}
    assert supersteps_of(old.fields, None) is None
    with pytest.raises(ChannelError, match="progress: steps = '3': expected int"):
        decode(json.dumps({**PROGRESS, **STEPS, "steps": "3"}).encode())


def test_the_longest_iteration_stays_until_a_sample_has_told_it():
    known = supersteps_of(STEPS, None)
    assert known == Supersteps(steps=3, longest_s=0.5, compute_s=1.0, comm_s=0.25)
    later = supersteps_of({"steps": 5, "longest_s": 0.25, "compute_s": 2.0, "comm_s": 1}, known)
    assert later == Supersteps(steps=5, longest_s=0.5, compute_s=2.0, comm_s=1.0)
    assert supersteps_of({}, later) is later


def test_a_look_between_two_samples_takes_nothing_from_the_next():
    longest_s = iter((0.5, 0.25, 0.75, 0.1))

    def read() -> list[GuestSample]:
        steps = Supersteps(steps=1, longest_s=next(longest_s), compute_s=1, comm_s=1)
        common = {"state": "running", "cap_cores": 1.0, "wanted_cores": 1.0, "cpu_s": 0.0, "rss_mib": 0.0,
                  "read_mib": 0.0, "written_mib": 0.0, "units_done": 0, "units_mono_ns": 0}  # fmt: skip
        return [GuestSample(guest="a", supersteps=steps, **common), GuestSample(guest="b", **common)]

    sampler = GuestSampler(read)
    sampler.look()
    told = sampler.take()
    assert [sample.supersteps and sample.supersteps.longest_s for sample in told] == [0.5, None]
    sampler.look()
    assert sampler.take()[0].supersteps.longest_s == 0.75


def test_time_of_a_hold_is_in_no_iteration(monkeypatch: pytest.MonkeyPatch):
    looks_s = iter((7.0, 67.0, 68.0))  # the clock is read at changes only
    monkeypatch.setattr(pace_module.time, "monotonic_ns", lambda: int(next(looks_s) * 1e9))
    pace = Pace()
    pace.step(0, 2 * 10**9, 3 * 10**9)  # 2 s of computing, then 1 s of messages
    for stands in (False, True, True, False, True):
        pace.stand(stands)
    pace.step(3 * 10**9, 5 * 10**9, 100 * 10**9)  # the guest was held from 7 to 67 and from 68 to its end
    assert pace.tell(2) == {"steps": 2, "longest_s": 5.0, "compute_s": 4.0, "comm_s": pytest.approx(4.0)}
    pace.step(100 * 10**9, 101 * 10**9, 101 * 10**9)
    assert pace.tell(3)["longest_s"] == 1.0
    pace.step(101 * 10**9, 103 * 10**9, 103 * 10**9)
    again = Pace.of(pace.keep())  # an image, and its next life
    assert again.tell(4) == {"steps": 4, "longest_s": 2.0, "compute_s": 7.0, "comm_s": pytest.approx(4.0)}


@pytest.mark.slow
class TestJobs:
    suite = _Base()

    def test_iterations_of_a_job_that_is_held_saved_and_restored_are_told_once_each(self, tmp_path: Path) -> None:
        """No iteration contains the time of a hold, and the sum of reported iterations is their total number."""

        async def scenario(node: Node) -> None:
            specs = self.suite.job(2, self.suite.throttled_s, topology="ring", units_per_iteration=400)
            members = [(node, spec) for spec in specs]
            sampler, meter = GuestSampler(node.driver.sample), StepMeter()
            points: dict[str, list[dict]] = {spec.guest: [] for spec in specs}

            def take() -> None:
                for sample in sampler.take():
                    if sample.supersteps is not None:
                        point = meter.advance(sample.guest, time.monotonic_ns(), sample.supersteps)
                        points[sample.guest] += [point] if point is not None else []

            async def watch(more: int) -> None:
                """Take samples until each rank has the given number of further points."""
                count = {guest: len(found) + more for guest, found in points.items()}
                async with asyncio.timeout(HANG_S):
                    while any(len(found) < count[guest] for guest, found in points.items()):
                        await asyncio.sleep(0.1)
                        take()

            begin_s = time.monotonic()
            await self.suite.start_job(members, cap_cores=self.suite.throttled_cores)
            await watch(2)
            await node.driver.hold("m0")
            await node.driver.set_cap("m1", 1.0)
            await node.work("m1", 0.1)  # long enough for m1 to wait for a message within an iteration
            await node.driver.hold("m1")
            await node.driver.set_cap("m1", self.suite.throttled_cores)
            held_s = time.monotonic()
            await asyncio.sleep(2 * (held_s - begin_s))  # speed: the test is about the time of a hold
            released_s = time.monotonic()
            await asyncio.gather(*(node.driver.release(spec.guest) for spec in specs))
            await watch(1)
            at_work_s = held_s - begin_s + time.monotonic() - released_s
            for found in points.values():
                assert max(point["max_s"] for point in found) < at_work_s
                assert sum(point["compute_s"] + point["comm_s"] for point in found) < at_work_s
            await asyncio.gather(*(node.driver.hold(spec.guest) for spec in specs))
            images = await self.suite.save_job(members)
            await self.suite.start_job(members, images, self.suite.throttled_cores)
            await watch(1)
            for spec in specs:
                await node.driver.set_cap(spec.guest, 1.0)
            for spec in specs:
                done = (await node.until(spec.guest, "done")).detail
                found = Supersteps(**{name: done[name] for name in ("steps", "longest_s", "compute_s", "comm_s")})
                last = meter.advance(spec.guest, time.monotonic_ns(), found)
                told = [*points[spec.guest], *([last] if last is not None else [])]
                program = spec.program
                assert sum(point["steps"] for point in told) == -(-program.work_units // program.units_per_iteration)
                assert sum(point["compute_s"] for point in told) == pytest.approx(done["compute_s"])
                assert sum(point["comm_s"] for point in told) == pytest.approx(done["comm_s"])
                assert done["compute_s"] > 0
                assert done["comm_s"] > 0
                assert all(point["max_s"] >= point["mean_s"] > 0 for point in told)

        self.suite.on_nodes(tmp_path, 1, scenario)
