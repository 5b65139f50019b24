"""Barriers of MPI jobs at the controller: the ranks that may pass, and the nodes at fault."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from support.live_jobs import live_job

from testbed.bus.guest_details import Failed, GuestReport, report_of
from testbed.bus.messages import GuestEvent, GuestSpec, MpiPass, ProgramSpec, Reply
from testbed.bus.requests import CommandFailedError, DeadlineError, NoAnswerError
from testbed.bus.suspicious_acts import ActKind
from testbed.errors import TestbedError
from testbed.lab import mpi_exchange
from testbed.lab.mpi_exchange import PASS_TRIES, MpiExchange, MpiSession
from testbed.run.phases import Phase
from testbed.scheduling.workload.jobs import Job

SPEC = GuestSpec(
    guest="dfrs-x-j1-t0", run="x", job=1, task=0, cpu_cores=1.0, memory_mib=64,
    program=ProgramSpec(name="patterns", work_units=100, units_per_iteration=10, seed=1, ranks=2),
)  # fmt: skip


class World:
    """A fleet that answers each pass as the test says, and a job whose ranks are on nodes 0, 1 and so on."""

    def __init__(self, ranks: int = 2) -> None:
        specs = tuple(msgspec.structs.replace(SPEC, guest=f"dfrs-x-j1-t{task}", task=task) for task in range(ranks))
        self.live = live_job(
            Job(1, 0.0, ranks, 1.0, 0.1, 10.0), specs, phase=Phase.RUNNING, running_on=tuple(range(ranks)),
            been={(task, task) for task in range(ranks)},
        )  # fmt: skip
        self.passes: list[tuple[int, str]] = []
        self.answers: Callable[[int, MpiPass], TestbedError | None] = lambda _node, _order: None
        self.suspects: list[tuple[int, ActKind]] = []
        self.events: list[tuple[int, GuestReport]] = []
        self.on_guest_event = lambda node, event: self.events.append((node, event))
        self.on_mpi_barrier = lambda _node, _event: None
        self.exchange = MpiExchange(self, 1.0)

    async def call(self, node: int, action: MpiPass, _deadline_s: float) -> dict[str, object]:
        self.passes.append((node, action.guest))
        error = self.answers(node, action)
        if error is not None:
            raise error
        return {}

    def name(self, node: int) -> str:
        return f"n{node}"

    def suspect(self, node: int, kind: ActKind, _what: object) -> None:
        self.suspects.append((node, kind))

    def enters(
        self, session: MpiSession, task: int, node: int | None = None, number: int = 1, **keys: str
    ) -> None:  # fmt: skip
        named = {key.replace("gather_", "-allgather-") + f"-{task}": value for key, value in keys.items()}
        detail = {"session": session.name, "number": number, "keys": named}
        node = task if node is None else node
        event = GuestEvent(
            node=f"n{node}", guest=f"dfrs-x-j1-t{task}", event="mpi-barrier", mono_ns=1, detail=detail
        )  # fmt: skip
        self.exchange.hear(node, report_of(event))

    async def passed(self) -> list[tuple[int, str]]:
        """Return the passes once all have been answered."""
        while self.exchange._passing:
            await asyncio.wait(self.exchange._passing)
        return sorted(self.passes)

    def reasons(self) -> list[str]:
        return [event.detail.reason for _, event in self.events if isinstance(event.detail, Failed)]


def expired(node: int, order: MpiPass) -> TestbedError:
    return DeadlineError(
        f"n{node}", order, "expired: not done in time", Reply(id="1", node=f"n{node}", status="expired")
    )


def mute(node: int, order: MpiPass) -> TestbedError:
    return NoAnswerError(f"n{node}", order, "no acknowledgement")


def play(act: Callable[[World, MpiSession], Awaitable[None]], ranks: int = 2) -> World:
    async def main() -> World:
        world = World(ranks)
        with world.exchange.start(world.live) as session:
            pass
        await act(world, session)
        return world

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mpi_exchange, "AGAIN_AFTER_S", 0.0, raising=False)
        return asyncio.run(main())


@pytest.mark.parametrize("fault", [expired, mute])
def test_a_pass_that_is_not_answered_is_tried_again(fault: Callable[[int, MpiPass], TestbedError]) -> None:
    async def act(world: World, session: MpiSession) -> None:
        world.answers = lambda node, order: fault(node, order) if len(world.passes) < 5 and node == 1 else None
        world.enters(session, 0)
        world.enters(session, 1)
        passes = await world.passed()
        assert passes.count((0, "dfrs-x-j1-t0")) == 1
        assert passes.count((1, "dfrs-x-j1-t1")) == 4

    world = play(act)
    assert world.events == []


@pytest.mark.parametrize("fault", [expired, mute])
def test_a_pass_that_is_never_answered_fails_the_job(fault: Callable[[int, MpiPass], TestbedError]) -> None:
    async def act(world: World, session: MpiSession) -> None:
        world.answers = lambda node, order: fault(node, order) if node == 1 else None
        world.enters(session, 0)
        world.enters(session, 1)
        assert (await world.passed()).count((1, "dfrs-x-j1-t1")) == PASS_TRIES

    world = play(act)
    ((node, failed),) = world.events
    assert (node, failed.guest, failed.event) == (1, "dfrs-x-j1-t1", "failed")
    assert str(failed.told["reason"]).startswith("n1: mpi-pass: ")


def test_a_pass_is_not_tried_again_for_a_job_that_has_ended() -> None:
    async def act(world: World, session: MpiSession) -> None:
        def ends(node: int, order: MpiPass) -> TestbedError:
            world.live.state.phase = Phase.FAILED
            return expired(node, order)

        world.answers = ends
        world.enters(session, 0)
        world.enters(session, 1)
        assert await world.passed() == [(0, "dfrs-x-j1-t0"), (1, "dfrs-x-j1-t1")]

    assert play(act).events == []


def test_a_rank_that_migrates_is_let_pass_at_both_ends() -> None:
    async def act(world: World, session: MpiSession) -> None:
        world.live.state.migrating_to = (0, 2)
        world.live.state.been.add((2, 1))
        world.enters(session, 1, node=2)
        world.enters(session, 1, node=1)  # a late report of its source
        world.enters(session, 0)
        assert await world.passed() == [(0, "dfrs-x-j1-t0"), (1, "dfrs-x-j1-t1"), (2, "dfrs-x-j1-t1")]

    assert play(act).events == []


def test_a_rank_that_has_migrated_is_let_pass_where_it_is() -> None:
    async def act(world: World, session: MpiSession) -> None:
        world.live.state.migrating_to = (0, 2)
        world.enters(session, 1, node=2)
        world.enters(session, 1, node=1)
        world.live.state.running_on, world.live.state.migrating_to = (0, 2), None
        world.enters(session, 0)
        assert await world.passed() == [(0, "dfrs-x-j1-t0"), (2, "dfrs-x-j1-t1")]

    assert play(act).events == []


def taken_over(world: World) -> MpiSession:
    """The session of the job after a loss of its controller; its name comes from the ranks' reports."""
    world.exchange.take_over(world.live)
    session, _ = world.exchange._by_guest[world.live.specs[0].guest]
    return MpiSession(session.live, "begun-before", session.barriers, session.failure)


@pytest.mark.parametrize("end_first", [True, False])
def test_a_rank_passes_the_barrier_that_only_its_partner_was_let_pass_before_the_controller_was_lost(
    end_first: bool,
) -> None:
    """The partner ends; the report of its end and that of the barrier may arrive in any order."""

    async def act(world: World, _session: MpiSession) -> None:
        session = taken_over(world)
        if not end_first:
            world.enters(session, 1, number=2)
            world.exchange.let_pass(world.live)
            assert await world.passed() == []
        world.live.state.finished_tasks.add(0)
        world.exchange.let_pass(world.live)
        if end_first:
            assert await world.passed() == []
            world.enters(session, 1, number=2)
        assert await world.passed() == [(1, "dfrs-x-j1-t1")]

    assert play(act).events == []


def test_a_rank_waits_for_a_partner_that_is_at_work_after_a_loss_of_the_controller() -> None:
    async def act(world: World, _session: MpiSession) -> None:
        session = taken_over(world)
        world.enters(session, 1, number=2)
        assert await world.passed() == []
        world.enters(session, 0, number=2)
        assert await world.passed() == [(0, "dfrs-x-j1-t0"), (1, "dfrs-x-j1-t1")]

    assert play(act).events == []


def test_an_end_that_refuses_a_guest_under_way_does_not_fail_it() -> None:
    async def act(world: World, session: MpiSession) -> None:
        world.live.state.migrating_to = (0, 2)
        world.answers = lambda node, order: (
            CommandFailedError(f"n{node}", order, "failed: not here") if order.guest.endswith("t1") else None
        )
        world.enters(session, 1)
        world.enters(session, 0)
        await world.passed()

    assert play(act).events == []


def test_a_late_word_of_a_guest_before_a_restart_is_left_alone() -> None:
    async def act(world: World, session: MpiSession) -> None:
        world.live.state.restarts = world.live.state.begun = 1
        world.live.begin_again()
        world.enters(session, 0)
        assert await world.passed() == []

    world = play(act)
    assert (world.events, world.suspects) == ([], [])


def test_a_node_that_tells_of_a_rank_that_it_never_had_is_suspect() -> None:
    async def act(world: World, session: MpiSession) -> None:
        world.enters(session, 0, node=1)
        assert world.suspects == [(1, ActKind.FOREIGN_GUEST)]
        world.live.state.been.add((1, 0))  # the rank was there before it migrated, so the report is only late
        world.enters(session, 0, node=1)
        assert world.suspects == [(1, ActKind.FOREIGN_GUEST)]
        world.enters(session, 1)
        assert await world.passed() == []

    assert play(act).events == []


@pytest.mark.parametrize("liar", [0, 1, 2])
@pytest.mark.parametrize("lie", [{"gather_1": "00", "gather_2": "00"}, {}, {"gather_2": "00"}, {"gather_1": "0000"}])
def test_who_publishes_something_else_than_the_others_is_named(liar: int, lie: dict[str, str]) -> None:
    async def act(world: World, session: MpiSession) -> None:
        for task in (1, 0, 2):
            world.enters(session, task, **(lie if task == liar else {"gather_1": "00"}))
        assert await world.passed() == []

    world = play(act, ranks=3)
    (reason,) = world.reasons()
    assert reason.startswith(f"node n{liar}: guest dfrs-x-j1-t{liar}: MPI key -allgather-")
    assert "bytes: expected" in reason
    assert world.suspects == [(liar, ActKind.FALSE_REPORT)]


def test_of_two_nodes_both_are_named() -> None:
    async def act(world: World, session: MpiSession) -> None:
        world.enters(session, 0, gather_1="00", gather_2="00")
        world.enters(session, 1, gather_1="00")
        assert await world.passed() == []

    world = play(act)
    assert world.reasons() == [
        "node n0 or node n1: guest dfrs-x-j1-t1: MPI key -allgather-2-1 of 0 bytes: expected 1 bytes as of rank 0"
    ]
    assert set(world.suspects) == {(0, ActKind.FALSE_REPORT), (1, ActKind.FALSE_REPORT)}


def test_a_node_with_most_ranks_is_named_too() -> None:
    async def act(world: World, session: MpiSession) -> None:
        world.live.state.running_on = (0, 1, 1)
        for task, node in ((0, 0), (1, 1), (2, 1)):
            world.enters(session, task, node=node, **({"gather_1": "00"} if node == 1 else {}))
        assert await world.passed() == []

    world = play(act, ranks=3)
    (reason,) = world.reasons()
    assert reason.startswith("node n0 or node n1: guest dfrs-x-j1-t0: MPI key -allgather-1-0 of 0 bytes: expected 1")
