"""Opening a lab, and jobs on it, with null drivers: mostly in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from support.deadlines import PATIENT, PATIENT_TOML

from node_agent.drivers.null import NullDriver
from testbed import Lab, RunError, UserError, open_lab
from testbed.bus.messages import Ping
from testbed.bus.telemetry import GuestSample
from testbed.lab.bring_up import dry_lab
from testbed.lab.lab import SMALL_MIB
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.scenario.schema import Scenario, check_scenario

NODES = [{"name": "a", "cpus": 1.0, "memory_mib": 1000}, {"name": "b", "cpus": 2.0, "memory_mib": 1000}]


def scenario(**changes: object) -> Scenario:
    table = {"name": "l", "policy": "FCFS", "workload": {}, "nodes": NODES, "deadlines": PATIENT, **changes}
    return check_scenario(table, Path("lab.toml"))


def in_lab(work: Callable[[Lab], Awaitable[None]], **changes: object) -> None:
    """Run a test with a lab in virtual time."""

    async def main() -> None:
        async with open_lab(scenario(**changes), bring_up=dry_lab) as lab:
            await work(lab)

    run_in_virtual_time(main())


def test_a_file_of_nodes_alone_is_a_lab(tmp_path: Path) -> None:
    file = tmp_path / "lab.toml"
    file.write_text('[[nodes]]\nname = "a"\n[[nodes]]\nname = "b"\n' + PATIENT_TOML)

    async def main() -> None:
        for given in (file, str(file)):
            async with open_lab(given, bring_up=dry_lab) as lab:
                assert lab.nodes == ("a", "b")
                assert [facts.driver for facts in lab.facts] == ["null", "null"]
                assert lab.core_units_per_s > 0.0

    run_in_virtual_time(main())


def test_what_is_wrong_with_a_file_or_a_node_is_told_before_anything_starts(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(UserError, match="nowhere: no such scenario file or name"):
            async with open_lab("nowhere"):
                raise AssertionError("the lab was opened")
        (tmp_path / "lab.toml").write_text('[[nodes]]\nnames = "a"\n')
        with pytest.raises(UserError, match=r"lab.toml: .*nodes.0.name"):
            async with open_lab(tmp_path / "lab.toml"):
                raise AssertionError("the lab was opened")
        with pytest.raises(UserError, match="node 'c': expected one of a, b"):
            async with open_lab(scenario(), nodes=("a", "c")):
                raise AssertionError("the lab was opened")

    asyncio.run(main())


def test_a_job_goes_through_its_operations_on_named_nodes() -> None:
    async def work(lab: Lab) -> None:
        async with lab.job(tasks=2, memory_mib=256) as job:
            assert job.nodes == ("a", "b")
            await job.start()
            assert (await job.cap(0.5)).caps_cores == {0: 0.5, 1: 0.5}
            assert (await job.save()).image_mib > 0.0
            await job.restore(nodes=("b", "a"))
            assert job.nodes == ("b", "a")
            there = [{sample.guest for sample in await lab.guests_on(node)} for node in lab.nodes]
            assert there == [{job.guests[1]}, {job.guests[0]}]
        assert [await lab.guests_on(node) for node in lab.nodes] == [[], []]

    in_lab(work)


def test_a_job_can_migrate_by_the_names_of_nodes() -> None:
    async def work(lab: Lab) -> None:
        async with lab.job(memory_mib=256) as job:
            await job.start()
            await job.migrate(("b",))
            assert job.nodes == ("b",)
            (sample,) = await lab.guests_on("b")
            assert sample.guest == job.name

    in_lab(work, migration={"mechanism": "live"})


def test_what_a_job_has_by_default() -> None:
    async def work(lab: Lab) -> None:
        small = lab.job()
        assert (small.nodes, small.cpu_cores, small.memory_mib) == (("a",), 1.0, SMALL_MIB)
        assert small.specs[0].program.name == "eatcpu"
        assert lab.job(nodes=("b",)).cpu_cores == 2.0
        assert lab.job(nodes=("b", "b")).cpu_cores == 1.0, "tasks of one node share its cores"
        wide = lab.job(tasks=3)
        assert wide.nodes == ("a", "b", "a")
        assert wide.cpu_cores == 0.5
        assert [spec.program.rank for spec in wide.specs] == [0, 1, 2]
        assert {spec.program.name for spec in wide.specs} == {"patterns"}
        assert {spec.program.ranks for spec in lab.job(tasks=2, program="eatcpu").specs} == {1}
        addresses = [spec.address for job in (small, wide) for spec in job.specs]
        assert len(set(addresses)) == len(addresses)

    in_lab(work)


WRONG_PLACES = [
    ({"nodes": ("a", "c")}, "node 'c': expected one of a, b"),
    ({"nodes": (2,)}, "node 2: expected 0 to 1, or a name of a, b"),
    ({"nodes": (-1,)}, "node -1: expected 0 to 1"),
    ({"nodes": "ab"}, "nodes = 'ab' for 2 tasks: expected one node per task"),
    ({"nodes": ("a",), "tasks": 2}, "tasks = 2 with 1 nodes: expected one node for each task"),
    ({"tasks": -1}, "tasks = -1: expected at least 1"),
]


def test_a_wrong_place_for_a_job_is_refused_in_one_line() -> None:
    async def work(lab: Lab) -> None:
        for given, words in WRONG_PLACES:
            with pytest.raises(UserError, match=words):
                lab.job(**given)

    in_lab(work)


def test_operations_in_the_wrong_order_are_refused() -> None:
    async def work(lab: Lab) -> None:
        async with lab.job(tasks=2) as job:
            with pytest.raises(RunError, match="does not run"):
                await job.cap(0.5)
            with pytest.raises(RunError, match="expected a save before a restore"):
                await job.restore()
            await job.start()
            with pytest.raises(UserError, match=r"nodes = \('a',\) for 2 tasks"):
                await job.transfer(("a",))
            with pytest.raises(RunError, match="has no images"):
                await job.transfer(("b", "a"))

    in_lab(work)


def test_rates_are_those_of_the_programs_own_reports() -> None:
    async def work(lab: Lab) -> None:
        async with lab.job(cpu_cores=1.0) as job:
            await job.start()
            full = await job.rate()
            assert full == pytest.approx(lab.core_units_per_s, rel=0.01)
            await job.cap(0.25)
            assert await job.rate(2.0) == pytest.approx(full / 4, rel=0.01)
            rate = await job.rate_and_use(2.0)
            assert rate.units_per_s == pytest.approx(full / 4, rel=0.01)
            assert rate.used_cores == pytest.approx(0.25, rel=0.05)

    in_lab(work)


def test_a_long_measurement_of_a_rate_does_not_count_a_slow_moment() -> None:
    async def work(lab: Lab) -> None:
        async with lab.job(cpu_cores=1.0) as job, asyncio.TaskGroup() as group:
            await job.start()
            measured = group.create_task(job.rate(10.0))
            await asyncio.sleep(4.0)
            await job.cap(0.25)
            await asyncio.sleep(2.0)
            await job.cap(1.0)
            assert await measured == pytest.approx(lab.core_units_per_s, rel=0.01)

    in_lab(work)


def test_a_job_that_stands_still_has_no_rate() -> None:
    async def work(lab: Lab) -> None:
        async with lab.job() as job:
            await job.start()
            await job.hold()
            with pytest.raises(RunError, match=f"node a: rate of {job.name} = 0.0: expected "):
                await job.rate()

    in_lab(work)


def test_an_absurd_rate_is_refused_with_the_node_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = NullDriver.sample

    def lie(self: NullDriver) -> list[GuestSample]:
        return [msgspec.structs.replace(found, units_done=int(found.units_mono_ns * 1e6)) for found in sample(self)]

    async def work(lab: Lab) -> None:
        async with lab.job(nodes=("b",)) as job:
            await job.start()
            with pytest.raises(RunError, match=f"node b: rate of {job.name} = .*: expected 0.001 to 1e"):
                await job.rate()

    monkeypatch.setattr(NullDriver, "sample", lie)
    in_lab(work)


def test_the_lease_is_released_and_guests_are_gone_after_the_block() -> None:
    agents_saw: list[int] = []

    async def main() -> None:
        one = open_lab(scenario(), bring_up=dry_lab)
        for _ in range(2):  # a second opening makes a separate lab
            async with one as lab:
                job = lab.job()
                await job.start()  # and never stopped
                agents_saw.append(len(await lab.guests_on(0)))
                assert isinstance(await lab.command("a", Ping(), 60.0), dict)

    run_in_virtual_time(main())
    assert agents_saw == [1, 1]


def test_an_error_inside_the_block_comes_out_of_it() -> None:
    async def work(_lab: Lab) -> None:
        raise KeyError("of the caller")

    with pytest.raises(KeyError, match="of the caller"):
        in_lab(work)
