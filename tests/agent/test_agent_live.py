"""Functions that an agent adds to its driver: options, memory accounts, one command per guest at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import xxhash
from click.testing import CliRunner

from node_agent.agent import Agent, AgentConfig
from node_agent.cli import cli
from node_agent.drivers.make import make_driver
from node_agent.drivers.null import NullDriver
from node_agent.drivers.protocol import DriverError, DriverFacts, ImageKind, ImageLostError, NodeBudget
from testbed.bus.lease import token_digest
from testbed.bus.memory import MemoryHub
from testbed.bus.messages import (
    Adopt,
    GuestSpec,
    Hold,
    ImageRef,
    Lease,
    ListGuests,
    Migrate,
    ProgramSpec,
    Save,
    Start,
    Stop,
    encode,
)
from testbed.bus.migration import Destination
from testbed.errors import UserError
from testbed.lab.virtual_time import run_in_virtual_time

MEMORY_MIB = 100


def spec(guest: str, memory_mib: int) -> GuestSpec:
    program = ProgramSpec(name="eatcpu", work_units=10**9, units_per_iteration=100, seed=1)
    return GuestSpec(guest=guest, run="t", job=1, task=0, program=program, cpu_cores=1.0, memory_mib=memory_mib)


class Pair:
    """Two agents, not on a bus, with null drivers that migrate."""

    def __init__(self, folder: Path, kind: type[NullDriver] = NullDriver) -> None:
        hub = MemoryHub()
        self.drivers = [kind("whole,live") for _ in range(2)]
        self.facts: list[DriverFacts] = []
        self.agents = []
        for index, driver in enumerate(self.drivers):
            place = folder / str(index)
            config = AgentConfig("t", f"n{index}", 1.0, MEMORY_MIB, place, place / "images")
            self.agents.append(Agent(config, driver, lambda _presence: hub.client("unused")))

    async def open(self, folder: Path) -> None:
        for index, driver in enumerate(self.drivers):
            budget = NodeBudget(f"n{index}", 1.0, MEMORY_MIB, folder, folder, "127.0.0.1", "dfrs-")
            self.facts.append(await driver.open(budget, lambda _driver_event: None))

    def migrate(self, guest: str) -> Migrate:
        to = Destination(uri="null://n1/system", host="n1", node="n1")
        return Migrate(guest=guest, to=to, budget_s=60, no_progress_s=20)


def test_a_migration_frees_the_source_and_counts_at_the_target(tmp_path: Path) -> None:
    async def main() -> None:
        pair = Pair(tmp_path)
        await pair.open(tmp_path)
        here, there = pair.agents
        await here.perform(Start(spec=spec("a", 60), cap_cores=1.0))
        report = await here.perform(pair.migrate("a"))
        assert report["bytes"] == 60 << 20
        assert set(report) == {"bytes", "elapsed_s", "downtime_s", "rounds"}
        await there.perform(Adopt(spec=spec("a", 60), cap_cores=0.5))
        await there.perform(Adopt(spec=spec("a", 60), cap_cores=0.25))  # a repeat, as if the reply was lost
        assert [sample.cap_cores for sample in pair.drivers[1].sample()] == [0.25]
        await here.perform(Start(spec=spec("b", 60), cap_cores=1.0))
        with pytest.raises(DriverError, match="40 of 100 MiB are free"):
            await there.perform(Start(spec=spec("c", 60), cap_cores=1.0))
        for driver in pair.drivers:
            await driver.close()

    run_in_virtual_time(main())


def test_an_arrival_beyond_the_budget_is_not_taken_over_and_not_destroyed(tmp_path: Path) -> None:
    async def main() -> None:
        pair = Pair(tmp_path)
        await pair.open(tmp_path)
        here, there = pair.agents
        await here.perform(Start(spec=spec("a", 60), cap_cores=1.0))
        await there.perform(Start(spec=spec("b", 60), cap_cores=1.0))
        await here.perform(pair.migrate("a"))
        with pytest.raises(DriverError, match="guest a needs 60 MiB; 40 of 100"):
            await there.perform(Adopt(spec=spec("a", 60), cap_cores=1.0))
        assert {sample.guest for sample in pair.drivers[1].sample()} == {"a", "b"}
        await there._abandon("the lease ran out")
        assert pair.drivers[1].sample() == []

    run_in_virtual_time(main())


def test_a_settled_list_waits_for_the_command_under_way(tmp_path: Path) -> None:
    async def main() -> None:
        pair = Pair(tmp_path)
        await pair.open(tmp_path)
        here, _ = pair.agents
        await here.perform(Start(spec=spec("a", 60), cap_cores=1.0))
        moving = asyncio.create_task(here.perform(pair.migrate("a")))
        await asyncio.sleep(0.01)
        at_once = await here.perform(ListGuests())
        assert not moving.done()
        settled = await here.perform(ListGuests(settled=("a",)))
        assert moving.done()
        assert [guest["guest"] for guest in at_once["guests"]] == ["a"]
        assert settled["guests"] == []
        for driver in pair.drivers:
            await driver.close()

    run_in_virtual_time(main())


class SlowDriver(NullDriver):
    """Creates guests slowly, and cannot destroy an unfinished one: the moment after the lease has expired."""

    def __init__(self) -> None:
        super().__init__("whole,live")
        self.starting = asyncio.Event()

    async def start(self, spec: GuestSpec, cap_cores: float) -> None:
        self.starting.set()
        await asyncio.sleep(10.0)
        await super().start(spec, cap_cores)


def test_a_guest_that_is_being_made_when_the_lease_goes_is_not_left(tmp_path: Path) -> None:
    async def main() -> None:
        driver = SlowDriver()
        agent = Agent(AgentConfig("t", "n0", 1.0, MEMORY_MIB, tmp_path, tmp_path), driver, lambda _presence: None)
        await driver.open(NodeBudget("n0", 1.0, MEMORY_MIB, tmp_path, tmp_path, "127.0.0.1", "dfrs-"), lambda _: None)
        first = asyncio.create_task(agent.perform(Start(spec=spec("a", 60), cap_cores=1.0)))
        await driver.starting.wait()
        behind = asyncio.create_task(agent.perform(Hold(guest="a")))  # waits for its turn
        await asyncio.sleep(1.0)
        await agent._abandon("the lease was released")
        assert first.cancelled()
        assert behind.cancelled()
        await asyncio.sleep(60.0)
        assert driver.sample() == []
        again = await asyncio.create_task(agent.perform(Start(spec=spec("b", MEMORY_MIB), cap_cores=1.0)))
        assert again == {}, "the memory of the aborted guest is free"

    run_in_virtual_time(main())


def test_a_paused_orphan_stays_until_it_is_stopped(tmp_path: Path) -> None:
    async def main() -> None:
        pair = Pair(tmp_path)
        await pair.open(tmp_path)
        agent, driver = pair.agents[0], pair.drivers[0]
        await agent.perform(Start(spec=spec("a", 60), cap_cores=1.0))
        await agent._abandon("the lease ran out", pause=True)
        assert [sample.state for sample in driver.sample()] == ["held"]
        await agent.perform(Start(spec=spec("b", 40), cap_cores=0.0))
        await agent._abandon("the lease was released")
        assert [sample.guest for sample in driver.sample()] == ["a"], "only guests of that lease are removed with it"
        with pytest.raises(DriverError, match="40 of 100 MiB are free"):
            await agent.perform(Start(spec=spec("c", 60), cap_cores=1.0))
        await agent.perform(Stop(guest="a"))
        await agent.perform(Start(spec=spec("a", 100), cap_cores=1.0))
        await agent._abandon("the lease was released")
        assert driver.sample() == []

    run_in_virtual_time(main())


class StubbornDriver(NullDriver):
    """A driver whose guests cannot be held."""

    async def hold(self, guest: str) -> int | None:
        raise DriverError(f"guest {guest} does not listen")


def test_an_orphan_that_cannot_be_paused_does_not_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        driver = StubbornDriver("whole,live")
        agent = Agent(AgentConfig("t", "n0", 1.0, MEMORY_MIB, tmp_path, tmp_path), driver, lambda _presence: None)
        await driver.open(NodeBudget("n0", 1.0, MEMORY_MIB, tmp_path, tmp_path, "127.0.0.1", "dfrs-"), lambda _: None)
        await agent.perform(Start(spec=spec("a", 60), cap_cores=1.0))
        await agent._abandon("the lease ran out", pause=True)
        assert driver.sample() == []

    run_in_virtual_time(main())


def test_a_guest_knows_the_lease_it_runs_under_by_name_only(tmp_path: Path) -> None:
    async def main() -> None:
        pair = Pair(tmp_path)
        await pair.open(tmp_path)
        secret = "f" * 32
        lease = Lease(digest=token_digest(secret), holder="host:7", ttl_s=60.0, expires_unix_s=1e12)
        for agent in pair.agents:
            agent._lease.hear("t", encode(lease))
        await pair.agents[0].perform(Start(spec=spec("a", 60), cap_cores=1.0))
        (guest,) = pair.drivers[0]._guests.values()
        assert guest.spec.lease == pair.agents[0]._lease.name
        assert guest.spec.lease.startswith("host:7/")
        assert secret not in str(guest.spec)
        for driver in pair.drivers:
            await driver.close()

    run_in_virtual_time(main())


def test_options_reach_the_driver_and_unknown_ones_are_named() -> None:
    assert make_driver("null", {"extras": "live"})._extras == ("live",)
    with pytest.raises(UserError, match="driver 'null': unknown option 'speed': expected one of extras"):
        make_driver("null", {"speed": "1"})
    with pytest.raises(UserError, match="driver 'process': unknown option 'cap': expected one of caps"):
        make_driver("process", {"cap": "duty"})


@pytest.mark.parametrize(
    ("options", "words"),
    [(["caps"], "'caps': expected NAME=VALUE"), (["caps=a", "caps=b"], "caps is given twice")],
)
def test_options_that_are_no_pairs_are_refused(options: list[str], words: str) -> None:
    arguments = [word for option in options for word in ("--option", option)]
    result = CliRunner().invoke(cli, ["--node", "n1", *arguments])
    assert result.exit_code == 2
    assert words in result.output


@pytest.mark.parametrize("checks", [True, False])  # checked by the agent, or by the driver's guests
def test_an_image_that_was_altered_or_is_gone_never_gets_to_work(tmp_path: Path, *, checks: bool) -> None:
    class Unverified(NullDriver):
        images = ImageKind("null", whole=True, verified=not checks)

    async def main() -> None:
        pair = Pair(tmp_path, Unverified)
        await pair.open(tmp_path)
        agent, _ = pair.agents
        await agent.perform(Start(spec=spec("a", 60), cap_cores=1.0))
        await agent.perform(Hold(guest="a"))
        await agent.perform(Save(guest="a", image="a.img"))
        path = tmp_path / "0" / "images" / "a.img"
        content = path.read_bytes()
        image = ImageRef(image="a.img", bytes=len(content), digest=xxhash.xxh3_128(content).hexdigest())
        path.write_bytes(content + b" " if checks else b"{}")
        for _ in range(2):  # the first attempt does not affect the second
            with pytest.raises(ImageLostError, match=f"expected {image.digest[:12]}"):
                await agent.perform(Start(spec=spec("a", 60), cap_cores=1.0, image=image))
            assert pair.drivers[0].sample() == []
        path.unlink()
        with pytest.raises(ImageLostError, match=r"image a\.img: No such file or directory"):
            await agent.perform(Start(spec=spec("a", 60), cap_cores=1.0, image=image))
        path.write_bytes(content)
        await agent.perform(Start(spec=spec("a", 60), cap_cores=1.0, image=image))
        assert [sample.guest for sample in pair.drivers[0].sample()] == ["a"]
        await agent.perform(Stop(guest="a"))

    asyncio.run(main())
