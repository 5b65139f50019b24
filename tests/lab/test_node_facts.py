"""A node's facts about itself: wrong ones are refused before their use, with a line that names node, key and value."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.control.rehearsal import five_jobs, rehearse, scenario

from node_agent.agent import Agent
from node_agent.presence import presence_of
from testbed.bus import topics
from testbed.bus.memory import MemoryHub
from testbed.bus.messages import NodeFacts, NodeStatus, encode
from testbed.bus.protocol import Presence
from testbed.bus.requests import Requester
from testbed.control.admission import check_nodes
from testbed.control.dedicated import served_representatives
from testbed.errors import RunError, UserError
from testbed.lab.core_speed import core_rate
from testbed.lab.fleet import Fleet, rule_of
from testbed.lab.node_facts import check_alike, check_facts, check_fetch
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.scenario.schema import DeadlinesTable, NodeTable
from testbed.scheduling.policies.catalogue import parse

FACTS = NodeFacts(
    cpus=1.0, memory_mib=1024, machine_cores=2, machine_memory_mib=24_105, cpu_model="any", kernel="6",
    driver="process", capabilities=("start", "cap:cgroup1", "save:criu"), versions={}, address="192.0.2.7",
    image_port=4000, image_free_mib=1000, guest_floor_mib=64, programs=("eatcpu",),
)  # fmt: skip
BAD = [
    ({"cpus": -1.0}, "cpus = -1.0: expected 0.01 to 4096 cores"),
    ({"cpus": 0.0}, "cpus = 0.0: expected 0.01"),
    ({"cpus": 1e9}, "cpus = 1000000000.0: expected 0.01 to 4096 cores"),
    ({"cpus": 1e308}, r"cpus = 1e\+308: expected"),
    ({"cpus": float("nan")}, "cpus = nan: expected"),
    ({"cpus": float("inf")}, "cpus = inf: expected"),
    ({"cpus": 2.0}, "cpus = 2.0: expected 1, as the scenario says"),
    ({"memory_mib": 0}, "memory_mib = 0: expected 1 to 67108864 MiB"),
    ({"memory_mib": -5}, "memory_mib = -5: expected 1"),
    ({"memory_mib": 10**9}, "memory_mib = 1000000000: expected 1"),
    ({"memory_mib": 1023}, "memory_mib = 1023: expected 1024, as the scenario says"),
    ({"guest_floor_mib": 10**9}, "guest_floor_mib = 1000000000: expected 0 to 24105, its machine_memory_mib"),
    ({"guest_floor_mib": -1}, "guest_floor_mib = -1"),
    ({"machine_cores": 0}, "machine_cores = 0"),
    ({"machine_memory_mib": 10**9}, "machine_memory_mib = 1000000000"),
    ({"image_free_mib": -1}, "image_free_mib = -1"),
    ({"image_port": 70_000}, "image_port = 70000: expected a port"),
    ({"address": ""}, "address = '': expected a host name or IP address"),
    ({"address": "h; rm -rf /"}, "address = 'h; rm -rf /'"),
    ({"address": "0.0.0.0"}, r"address = '0\.0\.0\.0': expected a host name or IP address"),  # noqa: S104  # must be refused
    ({"address": "::"}, "address = '::'"),
    ({"address": "224.0.0.1"}, "address = "),
    ({"address": "::ffff:239.1.1.1"}, "address = "),
    ({"address": "255.255.255.255"}, "address = "),
    ({"address": "127.1"}, "address = "),  # three ways to write 127.0.0.1
    ({"address": "2130706433"}, "address = "),
    ({"address": "0x7f.0x1"}, "address = "),
    ({"capabilities": ("a b",)}, r"capabilities = \('a b',\)"),
    ({"capabilities": ("x",) * 1000}, r"capabilities = .{80}… .*: expected at most 256 names"),
    ({"image_stores": ("../disk",)}, "image_stores"),
    ({"programs": ("",)}, "programs"),
]


def in_virtual_time(main: Coroutine[None, None, None]) -> None:
    run_in_virtual_time(main)


@pytest.mark.parametrize(("change", "words"), BAD)
def test_a_fact_out_of_bounds_is_named_with_its_node(change: dict, words: str) -> None:
    facts = msgspec.structs.replace(FACTS, **change)
    with pytest.raises(UserError, match=f"^node n1: its agent says {words}") as caught:
        check_facts("n1", facts, NodeTable(name="n1"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "target", "kind"),
    [
        ("127.0.0.1", "192.0.2.8", "loopback"),
        ("127.9.9.9", "n2.example", "loopback"),
        ("::1", "192.0.2.8", "loopback"),
        ("::ffff:127.0.0.1", "192.0.2.8", "loopback"),
        ("LocalHost.", "192.0.2.8", "loopback"),
        ("169.254.169.254", "192.0.2.8", "link-local"),
        ("fe80::1", "127.0.0.1", "link-local"),
        ("127.0.0.1", "127.0.0.1", ""),  # both on one machine
        ("localhost", "::1", ""),
        ("169.254.1.1", "169.254.1.2", ""),
        ("192.0.2.7", "127.0.0.1", ""),
        ("n1.example", "192.0.2.8", ""),
        ("/srv/images", "/srv/others", ""),
    ],
)
def test_no_node_is_sent_to_its_own_services_by_the_word_of_another(address: str, target: str, kind: str) -> None:
    if not kind:
        check_fetch("n1", address, "n2", target)
        return
    with pytest.raises(RunError, match=f"^node n1: its agent says address = .*, a {kind} address: expected one at wh"):
        check_fetch("n1", address, "n2", target)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "head.example", "10.0.0.1", "/srv/images"])
def test_facts_as_agents_tell_them_are_accepted(address: str) -> None:
    facts = msgspec.structs.replace(FACTS, address=address, cpus=1.0000001)
    check_facts("n1", facts, NodeTable(name="n1"))
    check_facts("n1", msgspec.structs.replace(facts, cpus=8.0), NodeTable(name="n1", spawn=False))
    check_facts("n1", facts)


def test_a_node_of_its_own_size_is_held_to_what_the_scenario_gives() -> None:
    with pytest.raises(UserError, match="expected 8, as the scenario says"):
        check_facts("n1", FACTS, NodeTable(name="n1", spawn=False, cpus=8.0))


@given(st.from_type(float), st.integers(-(2**70), 2**70), st.text(max_size=30), st.lists(st.text(), max_size=3))
def test_whatever_a_node_says_is_accepted_within_bounds_or_refused_in_a_line(
    cpus: float, mib: int, text: str, words: list[str]
) -> None:
    facts = msgspec.structs.replace(
        FACTS, cpus=cpus, memory_mib=mib, guest_floor_mib=mib, address=text, capabilities=tuple(words)
    )
    said = ""
    try:
        check_facts("n1", facts)
    except UserError as error:
        said = str(error)
    if said:
        assert said.startswith("node n1: its agent says ")
        assert "\n" not in said
    else:
        assert 0.01 <= facts.cpus <= 4096
        assert 1 <= facts.memory_mib <= 2**26


def test_nodes_that_differ_are_both_named() -> None:
    check_alike({"a": FACTS, "b": FACTS})
    bigger = msgspec.structs.replace(FACTS, cpus=2.0)
    with pytest.raises(UserError, match=r"node a has cpus = 1 .* node c has cpus = 2 .* the same on every node"):
        check_alike({"a": FACTS, "b": FACTS, "c": bigger})
    with pytest.raises(UserError, match="node b has cpus = 1 and memory_mib = 7"):
        check_alike({"a": FACTS, "b": msgspec.structs.replace(FACTS, memory_mib=7)})


@pytest.mark.parametrize("value", [None, "fast", 0, -1.0, 1e308, float("nan"), [1.0]])
def test_an_absurd_speed_of_a_core_is_refused(value: object) -> None:
    with pytest.raises(RunError, match=r"node n1: its agent says units_per_core_s = .*: expected 0\.001 to 1e"):
        core_rate("n1", {"units_per_core_s": value})
    with pytest.raises(RunError, match="units_per_core_s = None"):
        core_rate("n1", {})


@pytest.mark.parametrize(
    "change",
    [{"cpus": 1e308}, {"cpus": 1e9}, {"cpus": -1.0}, {"memory_mib": 10**9}, {"memory_mib": -5}, {"memory_mib": 0}],
)
def test_a_run_is_refused_for_what_one_node_says(change: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Agent._facts

    def lies(agent: Agent, *found: object) -> NodeFacts:
        facts = honest(agent, *found)
        return msgspec.structs.replace(facts, **change) if agent._config.node == "node-0" else facts

    monkeypatch.setattr(Agent, "_facts", lies)
    (key,) = change
    with pytest.raises(UserError, match=rf"^node node-0: its agent says {key} = .*: expected") as caught:
        rehearse(tmp_path, five_jobs())
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_refused_for_one_node_of_an_old_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_before(lab: str, node: str, boot: str, clock: str, facts: NodeFacts) -> Presence:
        shown = presence_of(lab, node, boot, clock, facts)
        if node != "node-1":
            return shown
        old = NodeStatus(v=1, node="node-1", online=True, boot="b", facts=facts)
        return replace(shown, online=lambda: encode(old))

    monkeypatch.setattr("node_agent.agent.presence_of", of_before)
    with pytest.raises(
        UserError, match=r"^node node-1: its agent has protocol 1 \(release .*\), this controller"
    ) as caught:
        rehearse(tmp_path, five_jobs())
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def status(facts: NodeFacts, boot: str = "b1") -> bytes:
    return encode(NodeStatus(node="n1", online=True, boot=boot, facts=facts))


def test_a_node_that_changes_its_size_is_taken_for_gone_until_it_is_right_again() -> None:
    async def main() -> None:
        hub = MemoryHub()
        async with hub.client("c") as bus, hub.client("n1") as agent:
            tables = scenario(nodes=[{"name": "n1"}]).nodes
            fleet = Fleet(bus, "t", ["n1"], Requester(bus, "t", "c", lambda: ""), rule_of(DeadlinesTable()), tables)
            seen: list[tuple[bool, str]] = []
            fleet.on_node_change = lambda node, change: seen.append((node.online, change.reason))
            await fleet.open()
            topic = topics.node_topic("t", "n1", "status")
            await agent.publish(topic, status(FACTS))
            await fleet.wait_for_all(20.0)
            await agent.publish(topic, status(msgspec.structs.replace(FACTS, cpus=1e308)))
            await agent.publish(topic, b'{"v":1,"node":"n1","online":true,"facts":{"cpus":null}}')
            await asyncio.sleep(1)
            assert fleet.facts(0).cpus == 1.0
            await agent.publish(topic, status(FACTS))
            await asyncio.sleep(1)
            assert [online for online, _ in seen] == [False, True]
            assert "cpus = 1e+308" in seen[0][1]

    in_virtual_time(main())


def test_memory_too_small_for_a_guest_is_told_with_its_cause() -> None:
    """A served lab has no jobs yet, so the error names the key of its scenario."""
    policy = parse("XGE", 600.0)
    served = scenario(serve={"least_mem_frac": 0.05})
    stand_in = list(served_representatives(served.serve, 2).values())
    with pytest.raises(UserError, match=r"^serve\.least_mem_frac = 0\.05 of a node's 1024 MiB is 51 MiB; a guest on a "
                       r"needs at least 64 MiB: expected memory_mib >= 1280$"):  # fmt: skip
        check_nodes({"a": FACTS}, [], stand_in, policy, served)
    small = [replace(job, mem_req_frac=0.05) for job in five_jobs()[:1]]
    with pytest.raises(UserError, match=r"^job \d: mem_req_frac = 0\.05 of a node's 1024 MiB is 51 MiB; a guest on a "):
        check_nodes({"a": FACTS}, small, small, policy, scenario())
