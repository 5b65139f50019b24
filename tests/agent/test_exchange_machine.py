"""Agents that exchange shares never lose or create shares, under any faults of agents and messages."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.agent.exchange_world import NODES, PERIOD_S, TOTALS, Faults, Job, World, writes_of

from node_agent.share_exchange import ShareExchange
from testbed.bus.messages import Exchange
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.shares.account import Account
from testbed.shares.messages import ExchangeMessage, Receipt, Transfer
from testbed.shares.node import NodeExchange

EXAMPLES = int(os.environ.get("DFRS_EXCHANGE_EXAMPLES", "100"))
MOST_EXAMPLES = 2000  # a defect must be found by then
CORES = 1.0
_EVENTS = (
    "messages", "messages lost", "messages delayed", "messages delivered", "messages to a dead agent",
    "deaths while it waits", "deaths before it is kept", "deaths after it is kept", "deaths between two messages",
    "agent restarts",
)  # fmt: skip
PARTS = st.sampled_from([0.0, 0.1, 0.4])
FAULTS = st.builds(
    Faults, lost=PARTS, doubled=PARTS, delayed=PARTS, deaths=st.sampled_from([0.0, 0.05, 0.2]),
    delay_s=st.sampled_from([1.0, 3 * PERIOD_S]),
)  # fmt: skip
PLACES = st.lists(st.sampled_from(NODES), min_size=2, max_size=4)  # the nodes of the guests of one job
USES = st.sampled_from([0.0, 0.05, 0.2, 0.9])  # cores
ACTIONS = st.one_of(
    st.tuples(st.just("use"), st.integers(0, 7), USES),
    st.tuples(st.just("wait"), st.integers(0, 7), st.integers(0, 3)),
    st.tuples(st.just("kill"), st.sampled_from(NODES), st.none()),
)
STEPS = st.lists(st.tuples(ACTIONS, st.sampled_from([0.0, 0.1, PERIOD_S, 3 * PERIOD_S])), min_size=10, max_size=40)


def jobs_of(mode: str, places: list[list[str]]) -> list[Job]:
    """Return jobs with guests on these nodes, which book at most 0.8 of a node."""
    on_one = max(sum(place == node for each in places for place in each) for node in NODES)
    return [
        Job(
            Exchange(
                mode=mode, secret=str(number) * 64, period_s=PERIOD_S, grant_s=PERIOD_S,
                nodes={f"g{number}{task}": node for task, node in enumerate(nodes)},
                bank=nodes[0] if mode == "bank" else "",
            ),
            0.8 / on_one,
        )
        for number, nodes in enumerate(places)
    ]  # fmt: skip


async def act(world: World, step: tuple[str, object, object]) -> None:
    """Do one step of a schedule."""
    guests = [guest for job in world.jobs for guest in job.order.nodes]
    match step:
        case ("use", int(guest), float(cores)):
            world.use_cores[guests[guest % len(guests)]] = cores
        case ("wait", int(guest), int(rank)):
            name = guests[guest % len(guests)]
            ranks = len(next(job for job in world.jobs if name in job.order.nodes).order.nodes)
            waited_s = list(world.waits_s.get(name, (0.0,) * ranks))
            waited_s[rank % ranks] += PERIOD_S
            world.waits_s[name] = tuple(waited_s)
        case ("kill", str(node), None):
            await world.kill(node)


async def schedule(
    world: World, faults: Faults, uses: list[float], steps: list[tuple[tuple[str, object, object], float]]
) -> None:  # fmt: skip
    """Run a schedule to its end."""
    for node in NODES:
        world.begin(node)
    world.check_kept()
    world.faults = faults
    for guest, cores in enumerate(uses):
        await act(world, ("use", guest, cores))
    for step, pass_s in steps:
        await act(world, step)
        world.restart_some()
        await asyncio.sleep(pass_s)
        world.check_agents()
    await settle(world)


async def settle(world: World) -> None:
    """Assert that each transfer is answered once there are no more faults."""
    world.faults = Faults()
    guests = [guest for job in world.jobs for guest in job.order.nodes]
    world.use_cores = dict.fromkeys(guests, 10.0)  # no guest has shares to give
    for node in NODES:
        world.restart(node)
    for _ in range(200):
        await asyncio.sleep(PERIOD_S / 10)
        if not world.transfers():
            break
    world.check_agents()
    assert world.transfers() == []
    for job in world.jobs:
        assert sum(state.shares for state in world.accounts(job).values()) == job.total


def schedules(examples: int, **more: object) -> None:
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck), **more)
    @given(st.sampled_from(["bank", "distributed"]), st.lists(PLACES, min_size=1, max_size=2), FAULTS,
           st.lists(USES, min_size=8, max_size=8), STEPS, st.integers(0, 1 << 32))  # fmt: skip
    def found(
        mode: str,
        places: list[list[str]],
        faults: Faults,
        uses: list[float],
        steps: list[tuple[tuple[str, object, object], float]],
        seed: int,
    ) -> None:
        TOTALS["examples"] += 1

        async def main(folder: Path) -> None:
            world = World(folder, jobs_of(mode, places), CORES, seed)
            with writes_of(world):
                try:
                    await schedule(world, faults, uses, steps)
                finally:
                    await world.end()

        with tempfile.TemporaryDirectory(prefix="dfrs-shares-") as name:
            run_in_virtual_time(main(Path(name)))

    found()


def test_shares_are_conserved() -> None:
    TOTALS.clear()
    while TOTALS["examples"] < EXAMPLES:  # in several searches, because the memory of a search grows with its examples
        schedules(min(EXAMPLES, 1000))
    print("\n".join(f"{count:9} {what}" for what, count in sorted(TOTALS.items())))  # noqa: T201  # output of the long lane
    if file := os.environ.get("DFRS_EXCHANGE_RESULT"):
        Path(file).write_text(json.dumps(TOTALS, indent=1, sort_keys=True) + "\n")
    assert [what for what in _EVENTS if not TOTALS[what]] == [], "these events never occurred in the schedules"


def returned_twice(patch: pytest.MonkeyPatch) -> None:
    settle_once = Account.settle

    def twice(account: Account, receipt: Receipt) -> None:
        settle_once(account, receipt)
        account.state.shares += 0 if receipt.taken else 1

    patch.setattr(Account, "settle", twice)


def taken_twice(patch: pytest.MonkeyPatch) -> None:
    take = Account.take

    def again(account: Account, transfer: Transfer, room: int) -> Receipt | None:
        known = account.state.received.get(transfer.source)
        if known is not None and known.number == transfer.number and known.taken:
            account.state.shares += transfer.shares
        return take(account, transfer, room)

    patch.setattr(Account, "take", again)


def sent_before_it_is_kept(patch: pytest.MonkeyPatch) -> None:
    exchange = NodeExchange.exchange

    def unkept(node: NodeExchange, *args: object) -> list[ExchangeMessage]:
        found = exchange(node, *args)  # type: ignore[arg-type]
        for each in found:
            if isinstance(each, Transfer):
                node.accounts[each.source].state.shares += each.shares  # as if the file had been written before
        return found

    patch.setattr(NodeExchange, "exchange", unkept)


def no_room(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShareExchange, "_free", property(lambda _exchange: 1 << 40))


@pytest.mark.parametrize("defect", [returned_twice, taken_twice, sent_before_it_is_kept, no_room])
def test_the_machine_finds_a_defect(defect: Callable[[pytest.MonkeyPatch], None]) -> None:
    TOTALS.clear()
    with pytest.MonkeyPatch.context() as patch:
        defect(patch)
        with pytest.raises(AssertionError):
            schedules(MOST_EXAMPLES, phases=[Phase.generate], derandomize=True)
    print(f"{defect.__name__}: found after {TOTALS['examples']} examples")  # noqa: T201
