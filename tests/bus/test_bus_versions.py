"""Parties with different protocol versions: each refuses the other with a line that names both; new fields are fine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import testbed
from testbed.bus import topics
from testbed.bus.lease import LeaseGuard, token_digest
from testbed.bus.memory import MemoryHub
from testbed.bus.messages import (
    BadRecordError,
    Command,
    GuestEvent,
    Lease,
    NodeFacts,
    NodeStatus,
    OtherProtocolError,
    Ping,
    Record,
    Reply,
    decode,
    encode,
)
from testbed.bus.requests import CommandFailedError, Requester
from testbed.bus.responder import Responder
from testbed.bus.telemetry import Telemetry
from testbed.bus.version import PROTOCOL, named
from testbed.errors import UserError
from testbed.lab.fleet import Fleet, rule_of
from testbed.lab.lease import hold_lease
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.scenario.schema import DeadlinesTable

FACTS = NodeFacts(
    cpus=1.0, memory_mib=1024, machine_cores=2, machine_memory_mib=24_105, cpu_model="any", kernel="6",
    driver="process", capabilities=("start",), versions={"testbed": "0.0.9"}, address="192.0.2.7",
    image_port=4000, image_free_mib=1000,
)  # fmt: skip
RECORDS: list[Record] = [
    Command(id="i", lease="l", reply_to="r", deadline_s=1.0, action=Ping(), release="0.1"),
    Reply(id="i", node="n", status="done", result={"a": {"b": 1}}),
    NodeStatus(node="n", online=True, facts=FACTS, release="0.1"),
    GuestEvent(node="n", guest="g", event="done", mono_ns=1, detail={"x": 1}),
    Lease(digest="d", holder="h", ttl_s=1.0, expires_unix_s=1.0, release="0.1"),
    Telemetry(
        node="n", mono_ns=1, cpu_frac=0.0, memory_used_mib=0.0, disk_read_mib=0.0, disk_written_mib=0.0,
        net_received_mib=0.0, net_sent_mib=0.0, agent_cpu_s=0.0, agent_rss_mib=0.0, guests=(),
    ),
]  # fmt: skip
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
new_fields = st.dictionaries(st.text("uvwxyz", min_size=3, max_size=8), plain, min_size=1, max_size=4)


def with_news(
    value: object, news: dict[str, Any], free: frozenset[str] = frozenset({"result", "detail", "versions"})
) -> object:
    """Add fields to every record in a record, except to mappings with free names."""
    if isinstance(value, dict):
        return {key: inner if key in free else with_news(inner, news) for key, inner in value.items()} | news
    return [with_news(inner, news) for inner in value] if isinstance(value, list) else value


@given(st.sampled_from(RECORDS), new_fields)
def test_fields_of_a_newer_release_of_the_same_protocol_are_ignored(record: Record, news: dict[str, Any]) -> None:
    raw = with_news(json.loads(encode(record)), news)
    assert decode(type(record), json.dumps(raw)) == record


@given(st.sampled_from(RECORDS), st.integers(PROTOCOL + 1, 2**70), plain, new_fields)
def test_a_record_of_a_newer_protocol_is_refused_or_read_as_far_as_it_can_be(
    record: Record, protocol: int, release: object, news: dict[str, Any]
) -> None:
    raw = json.dumps({**json.loads(encode(record)), "v": protocol, "release": release, **news})
    with pytest.raises(BadRecordError) as caught:
        decode(type(record), raw)
    assert "\n" not in str(caught.value)
    try:
        read = decode(type(record), raw, any_protocol=True)
    except BadRecordError:
        assert protocol >= 2**63 or not isinstance(release, str)
    else:
        assert read.v == protocol


@given(st.integers(), plain)
def test_a_protocol_has_a_short_name_of_one_line_whatever_its_release_is(protocol: int, release: object) -> None:
    name = named(protocol, release)
    assert name.startswith(f"protocol {protocol} (release ")
    assert len(name) < 60 + len(str(protocol))
    assert name.isprintable()


class Node:
    """A node whose agent sends the messages of the test."""

    def __init__(self, hub: MemoryHub, name: str) -> None:
        self.hub, self.name = hub, name

    async def announce(self, protocol: int, release: str = "", **more: object) -> None:
        status = NodeStatus(node=self.name, online=True, boot="b", facts=FACTS)
        raw = {**json.loads(encode(status)), "v": protocol, "release": release, **more}
        async with self.hub.client(f"agent-{self.name}") as bus:
            topic = topics.node_topic("t", self.name, "status")
            await bus.publish(topic, json.dumps(raw).encode(), retain=True)


def refused(protocol: int, release: str, **more: object) -> str:
    """Return a controller's error in a lab of three nodes: the last one has another protocol, and one is silent."""

    async def main() -> str:
        hub = MemoryHub()
        await Node(hub, "n1").announce(PROTOCOL, testbed.__version__)
        await Node(hub, "n3").announce(protocol, release, **more)
        async with hub.client("c") as bus:
            requester = Requester(bus, "t", "c", lambda: "")
            fleet = Fleet(bus, "t", ["n1", "n2", "n3"], requester, rule_of(DeadlinesTable()))
            await fleet.open()
            began_s = asyncio.get_running_loop().time()
            with pytest.raises(UserError) as caught:
                await fleet.wait_for_all(20.0)
            assert asyncio.get_running_loop().time() - began_s < 20.0, "at once, in virtual time"
            assert not fleet.nodes[2].online
            return str(caught.value)

    return run_in_virtual_time(main())


def test_an_old_node_is_refused_by_name_before_anything_starts() -> None:
    ours = named(PROTOCOL, testbed.__version__)
    assert refused(1, "") == (
        f"node n3: its agent has protocol 1 (release 0.0.9), this controller {ours}: expected the same; bring its "
        "agent up to date: `testbed node add` again, or ansible-playbook site.yml --tags agent"
    )


def test_a_newer_node_is_refused_by_name_whatever_else_it_says() -> None:
    said = refused(PROTOCOL + 1, "7.1", facts="of another form", online="maybe")
    assert said.startswith(f"node n3: its agent has protocol {PROTOCOL + 1} (release 7.1), this controller ")
    assert said.endswith("bring this controller up to date: pip install the release of the nodes")


def test_an_agent_refuses_an_older_and_a_newer_controller_and_names_both() -> None:
    async def main() -> None:
        hub = MemoryHub()
        done: list[object] = []

        async def handle(action: object) -> dict[str, object]:
            done.append(action)
            return {}

        async with (
            hub.client("agent") as agent,
            hub.client("c") as bus,
            Responder(agent, "t", "n1", handle, lambda _command: None),
            Requester(bus, "t", "c", lambda: "") as requester,
        ):
            honest = bus.publish

            def speaking(protocol: int, release: str) -> object:
                async def publish(topic: str, payload: bytes, qos: int = 1, *, retain: bool = False) -> None:
                    raw = {**json.loads(payload), "v": protocol, "release": release}
                    await honest(topic, json.dumps(raw).encode(), qos, retain=retain)

                return publish

            for protocol, release, behind in ((1, "", "the controller"), (PROTOCOL + 1, "7.1", "this agent")):
                bus.publish = speaking(protocol, release)  # type: ignore[method-assign]
                with pytest.raises(CommandFailedError) as caught:
                    await requester.call("n1", Ping(), 5.0)
                assert str(caught.value) == (
                    f"n1: ping: rejected: the controller has {named(protocol, release)}, this agent "
                    f"{named(PROTOCOL, testbed.__version__)}: expected the same; bring {behind} up to date"
                )
            assert done == []
            bus.publish = honest  # type: ignore[method-assign]
            await requester.call("n1", Ping(), 5.0)
            assert done == [Ping()]

    run_in_virtual_time(main())


def test_a_lab_that_a_newer_controller_drives_is_not_taken_for_free() -> None:
    async def main() -> None:
        hub = MemoryHub()
        lease = Lease(digest=token_digest("x"), holder="new:1", ttl_s=900.0, expires_unix_s=1e12, release="7.1")
        raw = {**json.loads(encode(lease)), "v": PROTOCOL + 1, "more": {"deep": [1]}}
        async with hub.client("new") as bus, hub.client("c") as own:
            await bus.publish(topics.lease_topic("t"), json.dumps(raw).encode(), retain=True)
            with pytest.raises(UserError, match=r"lab 't' is driven by new:1"):
                async with hold_lease(own, "t", "token", 900.0):
                    raise AssertionError("the message was accepted")

    run_in_virtual_time(main())


def test_our_own_records_say_what_they_are_of() -> None:
    async def main() -> None:
        hub = MemoryHub()
        heard: list[bytes] = []

        async def hear(_topic: str, payload: bytes) -> None:
            heard.append(payload)

        async with hub.client("agent") as agent, hub.client("c") as bus:
            await agent.subscribe(topics.node_topic("t", "n1", "command"), hear)
            async with hold_lease(bus, "t", "token", 900.0), Requester(bus, "t", "c", lambda: "") as requester:
                with pytest.raises(Exception, match="no acknowledgement"):
                    await requester.call("n1", Ping(), 1.0)
        lease = json.loads(hub.retained[topics.lease_topic("t")].payload)
        for raw in (lease, json.loads(heard[0])):
            assert (raw["v"], raw["release"]) == (PROTOCOL, testbed.__version__)

    run_in_virtual_time(main())


def test_the_guard_reads_a_lease_of_any_protocol() -> None:
    guard = LeaseGuard(lambda: 0.0)
    lease = Lease(digest=token_digest("a"), holder="h", ttl_s=5.0, expires_unix_s=1e12)
    guard.hear("t", msgspec.json.encode({**msgspec.to_builtins(lease), "v": PROTOCOL + 5}))
    assert guard.allows("a")
    with pytest.raises(OtherProtocolError):
        decode(Lease, msgspec.json.encode({**msgspec.to_builtins(lease), "v": PROTOCOL + 5}))
