"""Orders to exchange shares, and nodes that cannot do so."""

from __future__ import annotations

import re

import msgspec
import pytest

from testbed.bus.messages import GuestSpec, NodeFacts, ProgramSpec
from testbed.errors import UserError
from testbed.lab.job_guests import JobGuests, Unrecorded
from testbed.lab.sharing import Sharing, check_sharing
from testbed.scenario.schema import SharesTable
from testbed.scheduling.policies.catalogue import parse

NODES = ("n0", "n1", "n2")


def job(tasks: int) -> JobGuests:
    specs = tuple(
        GuestSpec(
            guest=f"g{task}", run="r", job=1, task=task, program=ProgramSpec("patterns", 10, 1, 1), cpu_cores=1.0,
            memory_mib=64, share_cores=0.5, address=f"10.77.1.{task + 1}/16",
        )
        for task in range(tasks)
    )  # fmt: skip
    return JobGuests(specs=specs, state=Unrecorded())


def facts_of(*capabilities: str) -> NodeFacts:
    return NodeFacts(
        cpus=1.0, memory_mib=640, machine_cores=2, machine_memory_mib=4096, cpu_model="x", kernel="y", driver="process",
        capabilities=capabilities, versions={}, address="127.0.0.1", image_port=1, image_free_mib=1,
    )  # fmt: skip


def test_each_life_of_a_job_gets_a_new_secret_and_the_bank_is_with_its_first_task() -> None:
    sharing = Sharing("bank", SharesTable(period_s=2, grant_s=3), NODES.__getitem__)
    first, second = sharing.order(job(2), [2, 0]), sharing.order(job(2), [2, 0])
    assert first is not None
    assert second is not None
    assert (first.mode, first.period_s, first.grant_s, first.bank) == ("bank", 2, 3, "n2")
    assert first.nodes == {"g0": "n2", "g1": "n0"}
    assert first.secret != second.secret
    assert msgspec.structs.replace(first, secret=second.secret) == second


def test_agents_that_may_guess_know_where_the_guests_are() -> None:
    periods = SharesTable(waits="traffic")
    found = Sharing("distributed", periods, NODES.__getitem__).order(job(2), [2, 0])
    assert found is not None
    assert (found.waits, found.addresses) == ("traffic", ("10.77.1.1/16", "10.77.1.2/16"))
    for mode, others in (("distributed", SharesTable()), ("bank", periods)):
        found = Sharing(mode, others, NODES.__getitem__).order(job(2), [2, 0])
        assert found is not None
        assert (found.waits, found.addresses) == ("layer", ())


def test_a_node_may_guess_where_the_scenario_says_so() -> None:
    policy, nodes = parse("DPS/distributed"), {"n0": facts_of("shares", "waits"), "n1": facts_of("shares", "traffic")}
    check_sharing(policy, nodes, "traffic")
    check_sharing(parse("DPS/bank"), nodes)
    with pytest.raises(UserError, match=r"n1: .* cannot note which tasks .*: expected one with the capability waits,"):
        check_sharing(policy, nodes)
    nodes["n0"] = facts_of("shares")
    with pytest.raises(UserError, match=r"n0: .* cannot note or guess .*: expected one with the capability waits or t"):
        check_sharing(policy, nodes, "traffic")


def test_nobody_exchanges_alone_or_where_shares_stay() -> None:
    assert Sharing("bank", SharesTable(), NODES.__getitem__).order(job(1), [0]) is None
    assert Sharing("none", SharesTable(), NODES.__getitem__).order(job(2), [0, 1]) is None


@pytest.mark.parametrize(
    ("policy", "capabilities", "lacking"),
    [("DPS/none", ("cap",), "shares"), ("DPS/distributed", ("shares",), "waits"), ("DPS/bank", ("waits",), "shares")],
)
def test_a_node_that_cannot_is_named(policy: str, capabilities: tuple[str, ...], lacking: str) -> None:
    able, unable = facts_of("shares", "waits"), facts_of(*capabilities)
    with pytest.raises(UserError, match=re.escape("node n1: its driver 'process' cannot ")) as raised:
        check_sharing(parse(policy), {"n0": able, "n1": unable})
    assert f"as policy {policy} requires: expected one with the capability {lacking}" in str(raised.value)
    check_sharing(parse(policy), {"n0": able, "n1": able})
    check_sharing(parse("FCFS"), {"n0": unable})
