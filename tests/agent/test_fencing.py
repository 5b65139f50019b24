"""An agent refuses commands for earlier lives of a task, and destroys guests whose fence passes. In virtual time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from node_agent.agent import Agent, AgentConfig
from node_agent.drivers.null import NullDriver
from node_agent.drivers.protocol import DriverError, DriverEvent, DriverFacts, ImageLostError, NodeBudget
from node_agent.fences import Fences, clock_identity
from node_agent.fencing import FENCES_FILE, GENERATIONS_FILE
from node_agent.generations import MOST_TASKS, Generations, OldGenerationError, check_image, task_of
from node_agent.guest_guard import FencedError, load_generations
from testbed.bus.memory import MemoryHub
from testbed.bus.messages import (
    Adopt,
    ExpectGuest,
    Fence,
    GuestSpec,
    Hold,
    ImageRef,
    ListGuests,
    ProgramSpec,
    Release,
    RenewFences,
    Save,
    SetCaps,
    Start,
    Stop,
)
from testbed.lab.virtual_time import run_in_virtual_time

CLOCK = clock_identity()
ENDLESS = ProgramSpec(name="eatcpu", work_units=1 << 60, units_per_iteration=1000, seed=1)


def spec(generation: int, guest: str = "dfrs-a-j1-t0") -> GuestSpec:
    return GuestSpec(
        guest=guest, run="a", job=1, task=0, program=ENDLESS, cpu_cores=1.0, memory_mib=64, generation=generation
    )


def fence(in_s: float, clock: str = CLOCK) -> Fence:
    return Fence(clock=clock, until_ns=int((asyncio.get_running_loop().time() + in_s) * 1e9))


def start(generation: int, until: Fence | None = None, **more: object) -> Start:
    return Start(spec=spec(generation, **more), cap_cores=1.0, verify=False, fence=until)


async def at_once(function: Callable[..., object], *arguments: object) -> object:
    return function(*arguments)


def with_agent(
    tmp_path: Path, act: Callable[[Agent, NullDriver], Awaitable[None]], extras: str = "",
    kind: type[NullDriver] = NullDriver,
) -> None:  # fmt: skip
    """Run an agent with simulated guests, and `act` beside it."""

    async def main() -> None:
        hub, driver = MemoryHub(), kind(extras)
        config = AgentConfig(
            "lab", "n0", 4.0, 1024, tmp_path / "state", tmp_path / "images", address=str(tmp_path / "images"),
            serve_images=False,
        )  # fmt: skip
        agent = Agent(config, driver, partial(hub.client, "agent-n0"))
        running = asyncio.create_task(agent.run())
        try:
            await asyncio.sleep(1.0)  # virtual
            assert not running.done()
            await act(agent, driver)
        finally:
            agent.stop()
            await running

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "to_thread", at_once)
        run_in_virtual_time(main())


def there(driver: NullDriver) -> list[str]:
    return sorted(sample.guest for sample in driver.sample())


def test_a_command_for_an_earlier_life_is_refused(tmp_path: Path) -> None:
    async def act(agent: Agent, driver: NullDriver) -> None:
        await agent.perform(start(3))
        (guest,) = there(driver)
        old: list[Any] = [
            Hold(guest=guest, generation=2), Release(guest=guest, generation=2), Stop(guest=guest, generation=2),
            Save(guest=guest, image="a.img", generation=2), SetCaps(caps={guest: 0.5}, generations={guest: 2}),
            Adopt(spec=spec(2), cap_cores=1.0), start(2), start(3),
        ]  # fmt: skip
        for action in old:
            with pytest.raises(OldGenerationError, match="generation 3 is known here"):
                await agent.perform(action)
        assert there(driver) == [guest]
        await agent.perform(Stop(guest=guest, generation=3))
        with pytest.raises(OldGenerationError):  # a start that was in transit when the guest was stopped
            await agent.perform(start(3))
        assert there(driver) == []
        with pytest.raises(OldGenerationError):  # the same task, with the name of another restart
            await agent.perform(start(2, guest="dfrs-a-j1-t0-r1"))
        await agent.perform(start(4, guest="dfrs-a-j1-t0-r1"))
        assert load_generations((tmp_path / "state" / GENERATIONS_FILE).read_bytes()).known == {"dfrs-a-j1-t0": 4}

    with_agent(tmp_path, act)


def test_generations_outlive_an_agent(tmp_path: Path) -> None:
    async def first(agent: Agent, _driver: NullDriver) -> None:
        await agent.perform(start(5))

    async def second(agent: Agent, driver: NullDriver) -> None:
        with pytest.raises(OldGenerationError):
            await agent.perform(start(5))
        assert there(driver) == []

    with_agent(tmp_path, first)
    with_agent(tmp_path, second)


def test_controllers_of_earlier_releases_give_no_generation(tmp_path: Path) -> None:
    async def act(agent: Agent, driver: NullDriver) -> None:
        await agent.perform(start(2))
        (guest,) = there(driver)
        await agent.perform(Stop(guest=guest))
        await agent.perform(start(0))
        assert there(driver) == [guest]

    with_agent(tmp_path, act)


def test_a_guest_is_destroyed_at_its_fence_unless_that_is_renewed(tmp_path: Path) -> None:
    async def act(agent: Agent, driver: NullDriver) -> None:
        await agent.perform(start(1, fence(10.0)))
        (guest,) = there(driver)
        await asyncio.sleep(9.0)  # virtual time, as all below
        await agent.perform(RenewFences(fence=fence(10.0), guests=(guest, "dfrs-a-j2-t0")))
        await asyncio.sleep(9.9)
        assert there(driver) == [guest]
        await agent.perform(RenewFences(fence=fence(-5.0), guests=(guest,)))  # a late one changes nothing
        with pytest.raises(FencedError, match="is not the clock of this node"):
            await agent.perform(RenewFences(fence=fence(60.0, "another"), guests=(guest,)))
        await asyncio.sleep(0.2)
        assert there(driver) == []
        assert agent.held() == set()

    with_agent(tmp_path, act)


@pytest.mark.parametrize(("in_s", "clock", "why"), [(-1.0, CLOCK, "has fallen 1.0"), (9.0, "x", "is of clock x")])
def test_a_late_start_creates_no_guest(tmp_path: Path, in_s: float, clock: str, why: str) -> None:
    async def act(agent: Agent, driver: NullDriver) -> None:
        with pytest.raises(FencedError, match=why):
            await agent.perform(start(1, fence(in_s, clock)))
        assert there(driver) == []

    with_agent(tmp_path, act)


def test_a_start_that_takes_longer_than_its_fence_leaves_no_guest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = NullDriver.start

    async def slow(driver: NullDriver, *arguments: Any) -> None:
        await real(driver, *arguments)
        await asyncio.sleep(60.0)

    monkeypatch.setattr(NullDriver, "start", slow)

    async def act(agent: Agent, driver: NullDriver) -> None:
        starting = asyncio.create_task(agent.perform(start(1, fence(5.0))))
        await asyncio.sleep(4.9)
        assert there(driver)
        await asyncio.sleep(0.2)
        assert there(driver) == []
        with pytest.raises(asyncio.CancelledError):
            await starting

    with_agent(tmp_path, act)


def test_a_guest_that_cannot_be_destroyed_is_destroyed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, resisting = NullDriver.stop, iter([True, True])

    async def resist(driver: NullDriver, guest: str) -> None:
        if next(resisting, False):
            raise DriverError("it resists")
        await real(driver, guest)

    async def act(agent: Agent, driver: NullDriver) -> None:
        await agent.perform(start(1, fence(5.0)))
        monkeypatch.setattr(NullDriver, "stop", resist)
        await asyncio.sleep(7.0)
        assert there(driver) == []
        assert next(resisting, None) is None

    with_agent(tmp_path, act)


def test_a_guest_that_arrives_after_its_fence_is_destroyed(tmp_path: Path) -> None:
    async def act(agent: Agent, driver: NullDriver) -> None:
        guest = spec(2).guest
        await agent.perform(ExpectGuest(guest=guest, generation=2, fence=fence(5.0)))
        await asyncio.sleep(30.0)
        driver._put(spec(1), 1.0, 0.0)  # its hypervisor creates it
        await asyncio.sleep(1.0)
        assert there(driver) == []
        await agent.perform(start(3, fence(5.0)))  # its next life here has a fence of its own
        await asyncio.sleep(4.0)
        assert there(driver) == [guest]

    with_agent(tmp_path, act, "live")


def test_a_guest_that_arrives_is_taken_over_with_a_fence(tmp_path: Path) -> None:
    async def act(agent: Agent, driver: NullDriver) -> None:
        guest = spec(2).guest
        await agent.perform(ExpectGuest(guest=guest, generation=2, fence=fence(5.0)))
        driver._put(spec(1), 1.0, 0.0)
        await agent.perform(Adopt(spec=spec(2), cap_cores=1.0, verify=False, fence=fence(20.0)))
        await asyncio.sleep(19.0)
        assert there(driver) == [guest]
        await asyncio.sleep(2.0)
        assert there(driver) == []

    with_agent(tmp_path, act, "live")


def test_a_keeper_reads_the_fences_of_a_dead_agent(tmp_path: Path) -> None:
    async def act(agent: Agent, driver: NullDriver) -> None:
        until = fence(5.0)
        await agent.perform(start(1, until))
        (guest,) = there(driver)
        table = Fences.load((tmp_path / "state" / FENCES_FILE).read_bytes(), CLOCK)
        assert (table.due(until.until_ns - 1), table.due(until.until_ns)) == ((), (guest,))
        found = await agent.perform(ListGuests())
        assert found["clock"] == CLOCK

    with_agent(tmp_path, act)


class Enforcing(NullDriver):
    """Records the fences in the file, and the existing guests, at each request to enforce fences."""

    async def open(self, budget: NodeBudget, tell: Callable[[DriverEvent], None]) -> DriverFacts:
        self.tell, self.path, self.seen = tell, budget.state_dir / FENCES_FILE, []
        self.fails = False
        return await super().open(budget, tell)

    async def enforce_fences(self) -> None:
        if self.fails:
            raise DriverError("nothing enforces them")
        self.seen.append((Fences.load(self.path.read_bytes(), CLOCK).guests(), there(self)))


def test_what_enforces_fences_without_the_agent_is_there_before_a_guest_begins(tmp_path: Path) -> None:
    async def act(agent: Agent, driver: NullDriver) -> None:
        assert isinstance(driver, Enforcing)
        await agent.perform(start(1))
        assert driver.seen == []
        await agent.perform(start(2, fence(5.0), guest="b"))
        assert driver.seen == [(("b",), [spec(1).guest])]
        driver.fails = True
        with pytest.raises(DriverError, match="nothing enforces them"):
            await agent.perform(start(3, fence(5.0), guest="c"))
        assert there(driver) == ["b", spec(1).guest]

    with_agent(tmp_path, act, kind=Enforcing)


def test_fences_of_guests_that_are_gone_are_removed_from_the_file(tmp_path: Path) -> None:
    def guests() -> tuple[str, ...]:
        return Fences.load((tmp_path / "state" / FENCES_FILE).read_bytes(), CLOCK).guests()

    async def act(agent: Agent, _driver: NullDriver) -> None:
        await agent.perform(start(1, fence(9.0), guest="a"))
        await agent.perform(start(1, fence(9.0), guest="b"))
        assert guests() == ("a", "b")
        await agent.perform(Stop(guest="a", generation=1))
        await asyncio.sleep(0.1)
        assert guests() == ("b",)

    with_agent(tmp_path, act)


def test_the_end_of_a_guest_that_was_destroyed_at_its_fence_beside_the_agent_is_told_as_that(tmp_path: Path) -> None:
    async def act(agent: Agent, driver: NullDriver) -> None:
        assert isinstance(driver, Enforcing)
        told: list[DriverEvent] = []
        agent._events.put = told.append
        await agent.perform(start(1, fence(5.0), guest="a"))
        killed = DriverEvent("a", "failed", 1, {"reason": "killed by signal 9"})
        driver.tell(killed)
        agent._fencing._guard.fences._entries["a"].until_ns = 1  # while the agent was stopped
        driver.tell(killed)
        assert told[-2] == killed
        assert told[-1].detail["code"] == "fenced"

    with_agent(tmp_path, act, kind=Enforcing)


def test_fences_end_with_the_boot_of_their_clock() -> None:
    table = Fences("before")
    table.place("g", 5)
    assert Fences.load(table.encode(), "after").due(10) == ()
    assert Fences.load(table.encode(), "before").due(10) == ("g",)
    for content in (b"", b"[]", b'{"clock": "before"}', b'{"clock": "before", "fences": {"g": 1}}', os.urandom(9)):
        with pytest.raises(ValueError, match=r"no table of fences|decode"):
            Fences.load(content, "before")


def test_an_image_of_another_life_is_refused() -> None:
    image = ImageRef(image="a.img", bytes=1, digest="d", generation=3)
    check_image(image, 3)
    check_image(image, 0)  # its note is of an earlier release
    with pytest.raises(ImageLostError, match="of generation 2, expected 3"):
        check_image(image, 2)


def test_the_oldest_tasks_are_forgotten() -> None:
    generations = Generations()
    for task in range(MOST_TASKS + 1):
        generations.create(f"dfrs-a-j{task}-t0", 1)
    assert len(generations.known) == MOST_TASKS
    assert task_of("dfrs-a-j0-t0-r12") == "dfrs-a-j0-t0"
    assert "dfrs-a-j0-t0" not in generations.known
