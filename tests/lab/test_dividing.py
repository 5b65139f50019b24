"""Guests that divide a yield: the commands for a new yield, and further requirements of their runs."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import pytest

from testbed.bus.messages import AnyAction, GuestSpec, NodeFacts, ProgramSpec, SetCaps
from testbed.errors import UserError
from testbed.lab.job_guests import JobGuests, Unrecorded
from testbed.lab.operations import Operations
from testbed.lab.sharing import Sharing, check_sharing
from testbed.scenario.schema import DeadlinesTable, SharesTable
from testbed.scheduling.policies.catalogue import parse

NODES = ("n0", "n1")
GREEDY = "GreedyPM */OPT=MIN"


class Recorded:
    """Nodes that set every cap, and record the commands in order."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, AnyAction]] = []
        self.on_mpi_barrier: Any = None

    def name(self, node: int) -> str:
        return NODES[node]

    async def call(self, node: int, action: AnyAction, deadline_s: float) -> dict[str, object]:
        del deadline_s
        await asyncio.sleep(0)
        self.asked.append((node, action))
        return {"caps": dict(action.caps)} if isinstance(action, SetCaps) else {}


def job(tasks: int) -> JobGuests:
    specs = tuple(
        GuestSpec(
            guest=f"g{task}", run="r", job=1, task=task, program=ProgramSpec("patterns", 10, 1, 1), cpu_cores=0.8,
            memory_mib=64,
        )
        for task in range(tasks)
    )  # fmt: skip
    return JobGuests(specs=specs, state=Unrecorded(running_on=tuple(range(tasks)), yield_frac=0.25))


def asked(policy: str, tasks: int = 2) -> list[SetCaps]:
    nodes = Recorded()
    sharing = Sharing.under(parse(policy), SharesTable(), nodes.name)
    operations = Operations(nodes, DeadlinesTable(), sharing=sharing)  # type: ignore[arg-type]
    assert asyncio.run(operations.set_running_cap(job(tasks), 0.5)) == dict.fromkeys(range(tasks), 0.4)
    return [action for _, action in nodes.asked if isinstance(action, SetCaps)]


def test_all_guests_go_down_before_any_begins_a_new_exchange() -> None:
    found = asked(f"{GREEDY}/WITHIN=dps")
    assert [action.lower for action in found] == [True, True, False, False]
    assert [action.exchange for action in found[:2]] == [None, None]
    (order,) = {action.exchange.secret: action.exchange for action in found[2:] if action.exchange}.values()
    assert (order.capped, order.mode, order.bank, order.nodes) == (True, "bank", "n0", {"g0": "n0", "g1": "n1"})
    again = asked(f"{GREEDY}/WITHIN=dps")[-1].exchange
    assert again is not None
    assert again.secret != order.secret
    assert msgspec.structs.replace(again, secret=order.secret) == order


@pytest.mark.parametrize(("policy", "tasks"), [(GREEDY, 2), (f"{GREEDY}/WITHIN=dps", 1)])
def test_nothing_else_is_asked_where_nobody_divides(policy: str, tasks: int) -> None:
    found = asked(policy, tasks)
    assert [(action.lower, action.exchange) for action in found] == [(False, None)] * tasks


def test_a_need_that_changes_while_caps_are_set_does_not_count_against_the_caps() -> None:
    class Meanwhile(Recorded):
        async def call(self, node: int, action: AnyAction, deadline_s: float) -> dict[str, object]:
            live.specs = tuple(msgspec.structs.replace(spec, cpu_cores=0.2) for spec in live.specs)
            return await super().call(node, action, deadline_s)

    live = job(2)
    operations = Operations(Meanwhile(), DeadlinesTable())  # type: ignore[arg-type]
    assert asyncio.run(operations.set_running_cap(live, 0.5)) == {0: 0.4, 1: 0.4}


def test_a_node_that_cannot_say_who_waits_is_named() -> None:
    facts = NodeFacts(
        cpus=1.0, memory_mib=640, machine_cores=2, machine_memory_mib=4096, cpu_model="x", kernel="y", driver="process",
        capabilities=("cap",), versions={}, address="127.0.0.1", image_port=1, image_free_mib=1,
    )  # fmt: skip
    check_sharing(parse(f"{GREEDY}/WITHIN=dps"), {"n0": facts})
    with pytest.raises(UserError, match=re.escape("node n0: its driver 'process' cannot note which tasks wait")):
        check_sharing(parse(f"{GREEDY}/WITHIN=dps/distributed"), {"n0": facts})
