"""The rank in a virtual machine, seen from its agent: lost answers, and guests from another node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

import pytest
from support.live import HANG_S

from node_agent.drivers.protocol import DriverError, DriverEvent
from node_agent.drivers.virt import rank as rank_module
from node_agent.drivers.virt.channel import RefusedError, UnansweredError
from node_agent.drivers.virt.rank import GuestRank
from node_agent.guests.wire import Frame
from testbed.bus.messages import GuestSpec, ProgramSpec, RankKeys

SESSION = "0123456789abcdef"
SPEC = GuestSpec(
    guest="g", run="t", job=1, task=0, cpu_cores=1.0, memory_mib=1,
    program=ProgramSpec(name="patterns", work_units=1, units_per_iteration=1, seed=1, rank=0, ranks=2),
)  # fmt: skip


class World:
    """A guest that executes orders, or fails as the test says."""

    def __init__(self) -> None:
        self.orders: list[tuple[str, dict[str, object]]] = []
        self.failures: list[Exception] = []
        self.driver_events: list[DriverEvent] = []
        self.troubles: list[str] = []
        self.news = asyncio.Event()
        self.rank = self.on_node()

    def on_node(self) -> GuestRank:
        """Return the state of the rank in the agent of a node when the guest arrives there."""
        return GuestRank(SPEC, self.order, self.driver_events.append, self.troubles.append)

    async def order(self, kind: str, fields: Sequence[tuple[str, object]]) -> Frame:
        self.orders.append((kind, dict(fields)))
        self.news.set()
        if self.failures:
            raise self.failures.pop(0)
        return Frame("ok", {})

    def says(self, number: int, line: str, state: str = f"{SESSION}.0") -> None:
        self.rank.hear(Frame("pmi", {"number": (str(number),), "state": (state,), "line": (line,)}))

    async def ordered(self, count: int) -> dict[str, object]:
        """Return the fields of the order of that number, counted from 1."""
        while len(self.orders) < count:
            self.news.clear()
            await self.news.wait()
        return self.orders[count - 1][1]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[World], Coroutine[None, None, None]]], None]:
    monkeypatch.setattr(rank_module, "AGAIN_AFTER_S", 0.0)

    def run(scenario: Callable[[World], Coroutine[None, None, None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(HANG_S):
                world = World()
                await scenario(world)
                world.rank.close()

        asyncio.run(main())

    return run


def test_a_rank_is_started_and_served(play) -> None:
    async def scenario(world: World) -> None:
        await world.rank.start("/bin/patterns", SESSION)
        assert world.orders == [
            ("rank", {"rank": 0, "ranks": 2, "state": f"{SESSION}.0", "arg": "/bin/patterns"}),
        ]
        world.says(1, "cmd=get_appnum")
        assert await world.ordered(2) == {"number": 1, "state": f"{SESSION}.0", "text": "cmd=appnum appnum=0"}
        world.says(2, "cmd=put kvsname=dfrs key=-allgather-1-0 value=0011")
        await world.ordered(3)
        world.says(3, "cmd=barrier_in")
        (driver_event,) = world.driver_events
        keys = {"-allgather-1-0": "0011"}
        assert (driver_event.guest, driver_event.event) == ("g", "mpi-barrier")
        assert driver_event.detail == {"session": SESSION, "number": 1, "keys": keys}
        world.says(3, "cmd=barrier_in")  # repeated to the same agent
        assert len(world.driver_events) == 1
        world.rank.pass_barrier(SESSION, 1, [RankKeys(rank=1, keys={"-allgather-1-1": "0022"})], last=True)
        assert await world.ordered(4) == {"number": 3, "state": f"{SESSION}.1", "text": "cmd=barrier_out"}
        world.says(4, "cmd=abort exitcode=1")
        assert (await world.ordered(5))["text"] == ""
        with pytest.raises(DriverError, match="has joined its MPI job already"):
            await world.rank.start("/bin/patterns", SESSION)

    play(scenario)


def test_an_answer_that_does_not_arrive_is_given_again(play) -> None:
    """As while the guest is held, or its channel is closed."""

    async def scenario(world: World) -> None:
        await world.rank.start("/bin/patterns", SESSION)
        world.failures = [UnansweredError("held"), DriverError("its control channel is not open")]
        world.says(1, "cmd=get_appnum")
        given = [await world.ordered(count) for count in (2, 3, 4)]
        assert given[0] == given[1] == given[2]
        assert world.troubles == []

    play(scenario)


def test_a_guest_that_refuses_an_answer_has_failed(play) -> None:
    async def scenario(world: World) -> None:
        await world.rank.start("/bin/patterns", SESSION)
        world.failures = [RefusedError("guest g refused pmi: no")]
        world.says(1, "cmd=get_appnum")
        await world.ordered(2)
        await asyncio.sleep(0)
        assert world.troubles == ["guest g refused pmi: no"]

    play(scenario)


def test_the_next_node_goes_on_where_the_rank_was(play) -> None:
    async def scenario(world: World) -> None:
        world.rank.pass_barrier(SESSION, 2, [], last=True)  # before the first message of the guest here
        world.says(70, "cmd=barrier_in", f"{SESSION}.1")
        assert world.driver_events[0].detail == {"session": SESSION, "number": 2, "keys": {}}
        world.rank.pass_barrier(SESSION, 2, [], last=True)
        assert await world.ordered(1) == {"number": 70, "state": f"{SESSION}.2", "text": "cmd=barrier_out"}
        world.rank = world.on_node()  # it moves again before the answer has arrived
        world.says(70, "cmd=barrier_in", f"{SESSION}.1")
        assert world.driver_events[1].detail == world.driver_events[0].detail
        world.rank = world.on_node()
        world.says(71, "cmd=finalize", f"{SESSION}.2")
        assert (await world.ordered(2))["text"] == "cmd=finalize_ack"

    play(scenario)


@pytest.mark.parametrize(
    ("line", "state", "words"),
    [
        ("cmd=spawn execname=/bin/sh", f"{SESSION}.0", "protocol violation: MPI says 'cmd=spawn execname=/bin/sh'"),
        ("\ufffd", f"{SESSION}.0", "protocol violation: MPI says"),
        ("cmd=get_appnum", "", "the state of its rank is ''"),
        ("cmd=get_appnum", "../../x.1", "the state of its rank is '../../x.1'"),
        ("cmd=barrier_in", f"{SESSION}.9999", "MPI enters barrier 10000: expected at most"),
    ],
)
def test_a_guest_that_speaks_nonsense_has_failed(play, line: str, state: str, words: str) -> None:
    async def scenario(world: World) -> None:
        world.says(1, line, state)
        (trouble,) = world.troubles
        assert words in trouble
        assert len(trouble.splitlines()) == 1
        assert world.orders == []
        assert world.driver_events == []

    play(scenario)
