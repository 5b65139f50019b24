"""The capabilities of a node follow from its driver's protocols; the agent refuses other commands with a code."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from node_agent.abilities import PROTOCOLS, Abilities, meter_of
from node_agent.agent import Agent, AgentConfig
from node_agent.drivers.null import NullDriver
from node_agent.drivers.protocol import Driver, DriverError, DriverEvent, DriverFacts, NodeBudget, UnableError
from testbed.bus import topics
from testbed.bus.memory import MemoryHub
from testbed.bus.messages import (
    Adopt,
    AnyAction,
    Command,
    Exchange,
    GuestSpec,
    Hold,
    ImageRef,
    Migrate,
    MpiJoin,
    MpiPass,
    Native,
    NodeStatus,
    ProgramSpec,
    Release,
    Reply,
    Save,
    Start,
    Stop,
    Watch,
    decode,
    encode,
)
from testbed.bus.migration import Destination
from testbed.bus.suspicious_acts import FILE, acts_in
from testbed.bus.telemetry import GuestSample
from testbed.errors import FailureCode
from testbed.lab.virtual_time import run_in_virtual_time

PROGRAM = ProgramSpec(name="eatcpu", work_units=10**9, units_per_iteration=100, seed=1)
SPEC = GuestSpec(guest="a", run="t", job=1, task=0, program=PROGRAM, cpu_cores=1.0, memory_mib=10)
RANK = GuestSpec(
    guest="m", run="t", job=1, task=0, cpu_cores=1.0, memory_mib=10,
    program=ProgramSpec(name="patterns", work_units=1, units_per_iteration=1, seed=1, ranks=2),
)  # fmt: skip
GUESSED = Exchange(
    mode="distributed", secret="0" * 64, period_s=1.0, grant_s=1.0, nodes={"a": "n1", "b": "n2"}, waits="traffic",
    addresses=("10.77.1.1/16", "10.77.1.2/16"),
)  # fmt: skip
IMAGE = ImageRef(image="a.img", bytes=1, digest="0" * 32)
TO = Destination(uri="null://n2/system", host="n2", node="n2")


class CoreDriver(Driver):
    """A driver with the core protocol only, made from one that implements more."""

    name = "core"
    traits = NullDriver.traits

    def __init__(self) -> None:
        self.inner = NullDriver()

    async def open(self, budget: NodeBudget, tell: Callable[[DriverEvent], None]) -> DriverFacts:
        await self.inner.open(budget, tell)
        return DriverFacts(("cap:arithmetic",))

    async def close(self) -> None:
        await self.inner.close()

    async def sweep(self, budget: NodeBudget, *, dry_run: bool = False) -> list[str]:
        return await self.inner.sweep(budget, dry_run=dry_run)

    async def start(self, spec: GuestSpec, cap_cores: float) -> None:
        await self.inner.start(spec, cap_cores)

    async def stop(self, guest: str) -> None:
        await self.inner.stop(guest)

    async def set_cap(self, guest: str, cap_cores: float) -> float:
        return await self.inner.set_cap(guest, cap_cores)

    def sample(self) -> list[GuestSample]:
        return self.inner.sample()


Ask = Callable[[AnyAction], Awaitable[Reply]]


def with_agent(driver: Driver, folder: Path, play: Callable[[NodeStatus, Ask], Awaitable[None]]) -> None:
    """Run a test with an agent on a bus: `ask` sends a command to the agent and returns the final reply."""

    async def main() -> None:
        hub = MemoryHub()
        config = AgentConfig("t", "n1", 1.0, 100, folder, folder / "images", str(folder / "images"), serve_images=False)
        agent = Agent(config, driver, lambda presence: hub.client("agent-n1", presence=presence))
        statuses: asyncio.Queue[NodeStatus] = asyncio.Queue()
        replies: asyncio.Queue[Reply] = asyncio.Queue()

        async def hear_status(topic: str, payload: bytes) -> None:
            statuses.put_nowait(decode(NodeStatus, payload, topic))

        async def hear_reply(topic: str, payload: bytes) -> None:
            replies.put_nowait(decode(Reply, payload, topic))

        async with hub.client("c") as bus:
            await bus.subscribe(topics.node_topic("t", "n1", "status"), hear_status)
            reply_to = topics.reply_topic("t", "c", "n1")
            ids = map(str, itertools.count())
            await bus.subscribe(reply_to, hear_reply)
            serving = asyncio.create_task(agent.run())
            status = await statuses.get()
            agent._lease.allows = lambda _token: True  # other tests cover the holder of the lease

            async def ask(action: AnyAction) -> Reply:
                command = Command(id=next(ids), lease="l", reply_to=reply_to, deadline_s=60.0, action=action)
                await bus.publish(topics.node_topic("t", "n1", "command"), encode(command))
                while not (reply := await replies.get()).final:
                    pass
                return reply

            await play(status, ask)
            agent.stop()
            await serving

    run_in_virtual_time(main())


REFUSED = {
    "save": [Hold(guest="a"), Release(guest="a"), Save(guest="a", image="a.img"),
             Start(spec=SPEC, cap_cores=1.0, image=IMAGE)],
    "live": [Migrate(guest="a", to=TO, budget_s=1.0, no_progress_s=1.0), Adopt(spec=SPEC, cap_cores=1.0)],
    "mpi": [MpiJoin(guest="a", session="0" * 16), MpiPass(guest="a", session="0" * 16, number=1, keys=(), last=True),
            Start(spec=RANK, cap_cores=1.0)],
    "native": [Native(program=PROGRAM, seconds=1.0)],
    "shares": [Start(spec=msgspec.structs.replace(SPEC, share_cores=0.5), cap_cores=1.0)],
    "traffic": [Start(spec=SPEC, cap_cores=1.0, exchange=GUESSED)],
}  # fmt: skip


def test_capabilities_are_those_of_the_protocols_and_what_was_found() -> None:
    assert set(REFUSED) == set(PROTOCOLS)
    assert Abilities(CoreDriver()).found(DriverFacts(("cap:x", "dom0"))) == ("start", "cap", "cap:x", "dom0")
    null = Abilities(NullDriver())
    assert null.found(DriverFacts()) == ("start", "cap", "save", "live", "mpi", "native", "save:null")
    lacks = {"live": "it is far away", "save": "there is no disk"}
    assert null.found(DriverFacts(lacks=lacks)) == ("start", "cap", "mpi", "native")
    whole = Abilities(NullDriver("whole")).found(DriverFacts(lacks={"live": "x"}))
    assert whole == ("start", "cap", "save", "mpi", "native", "save:null", "whole")


def test_what_a_driver_does_not_implement_is_refused_with_a_code_and_the_rest_is_done(tmp_path: Path) -> None:
    driver = CoreDriver()

    async def play(status: NodeStatus, ask: Ask) -> None:
        assert status.facts is not None
        assert status.facts.capabilities == ("start", "cap", "cap:arithmetic")
        assert status.facts.traits == CoreDriver.traits
        assert (await ask(Start(spec=SPEC, cap_cores=0.5))).status == "done"
        for ability, actions in REFUSED.items():
            for action in actions:
                if isinstance(action, Start | Adopt):
                    await ask(Stop(guest=action.spec.guest))
                reply = await ask(action)
                assert (reply.status, reply.code) == ("failed", FailureCode.UNABLE), action
                assert reply.error is not None
                assert reply.error.startswith("driver 'core' cannot ")
                assert reply.error.endswith(f"it does not implement {PROTOCOLS[ability].__name__}")
        assert [sample.guest for sample in driver.sample()] == []
        assert (await ask(Start(spec=SPEC, cap_cores=0.5))).status == "done", "its memory was released"
        watched = await ask(Watch(guests=("a",), every_s=0.1, for_s=1.0))
        assert watched.result["cpu_s"]["a"][-1] == pytest.approx(0.5, abs=0.06)

    with_agent(driver, tmp_path, play)
    acts = acts_in((tmp_path / FILE).read_bytes().splitlines())
    assert all("live" in act.what for act in acts), "controllers use only announced capabilities"
    assert acts


def test_what_a_driver_lacks_on_a_machine_is_refused_with_the_reason(tmp_path: Path) -> None:
    class Lacking(NullDriver):
        async def open(self, budget: NodeBudget, tell: Callable[[DriverEvent], None]) -> DriverFacts:
            await super().open(budget, tell)
            return DriverFacts(lacks=dict.fromkeys(PROTOCOLS, "the machine is too old"))

    async def play(status: NodeStatus, ask: Ask) -> None:
        assert status.facts is not None
        assert status.facts.capabilities == ("start", "cap")
        for actions in REFUSED.values():
            reply = await ask(actions[0])
            assert reply.code == FailureCode.UNABLE
            assert str(reply.error).endswith(": the machine is too old")

    with_agent(Lacking(), tmp_path, play)


def test_where_ranks_count_their_waits_nobody_needs_to_guess() -> None:
    able = Abilities(CoreDriver())
    able.found(DriverFacts(("waits",)))
    able.check_start(SPEC, GUESSED)


@pytest.mark.parametrize("counts", [False, True])
def test_an_agent_has_waits_guessed_where_its_ranks_do_not_count_them(tmp_path: Path, counts: bool) -> None:
    asked: list[tuple[str, tuple[str, ...]]] = []

    class Guessing(NullDriver):
        async def open(self, budget: NodeBudget, tell: Callable[[DriverEvent], None]) -> DriverFacts:
            await super().open(budget, tell)
            return DriverFacts(("waits",) if counts else ())

        async def set_share(self, _guest: str, share_cores: float) -> float:
            return share_cores

        async def guess_waits(self, guest: str, addresses: Sequence[str]) -> None:
            asked.append((guest, tuple(addresses)))

    async def play(_status: NodeStatus, ask: Ask) -> None:
        shared = msgspec.structs.replace(SPEC, share_cores=0.5)
        assert (await ask(Start(spec=shared, cap_cores=0.5, exchange=GUESSED))).status == "done"
        await asyncio.sleep(5 * GUESSED.period_s)  # of virtual time

    with_agent(Guessing(), tmp_path, play)
    assert asked == ([] if counts else [("a", GUESSED.addresses)])


def test_a_guest_that_cannot_be_held_is_destroyed_when_its_controller_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        driver = CoreDriver()
        agent = Agent(AgentConfig("t", "n1", 1.0, 100, tmp_path, tmp_path), driver, lambda _presence: None)
        await agent.perform(Start(spec=SPEC, cap_cores=1.0))
        await agent._abandon("the lease ran out", pause=True)
        assert driver.sample() == []

    run_in_virtual_time(main())


def test_without_a_meter_of_its_own_a_driver_is_sampled() -> None:
    async def main() -> None:
        driver = CoreDriver()
        with pytest.raises(DriverError, match="guest a"):
            meter_of(driver, "a")
        await driver.start(SPEC, 0.5)
        meter = meter_of(driver, "a")
        await asyncio.sleep(4.0)  # virtual: half a core for 4 s
        assert meter().cpu_s == pytest.approx(2.0)
        assert meter().units == driver.sample()[0].units_done
        await driver.stop("a")
        with pytest.raises(DriverError, match="guest a has ended"):
            meter()

    run_in_virtual_time(main())


def test_a_class_without_the_core_is_no_driver() -> None:
    class Half(Driver):
        name = "half"

    with pytest.raises(TypeError, match="abstract"):
        Half()
    with pytest.raises(UnableError, match="driver 'core' cannot save and restore guests: it does not implement Saves"):
        _ = Abilities(CoreDriver()).saving
