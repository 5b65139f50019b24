from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bus import topics
from testbed.bus.address import BrokerAddress
from testbed.errors import UserError

names = st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True)
kinds = st.sampled_from(["status", "telemetry", "command", "event"])


@given(names, names, kinds)
def test_the_node_is_read_back_from_its_topics(lab: str, node: str, kind: topics.NodeKind) -> None:
    topic = topics.node_topic(lab, node, kind)
    assert topics.node_of(topic) == node
    assert topics.matches(topics.node_topic(lab, topics.ANY, kind), topic)
    assert topics.matches(f"testbed/v1/{lab}/#", topic)
    assert topics.check_topic(topic) == topic
    for other in (
        topics.lease_topic(lab),
        topics.reply_topic(lab, node, node),
        topic + "/more",
        topic[:-1],
        "x" + topic,
    ):
        assert topics.node_of(other) is None


def test_topics_are_those_of_the_architecture() -> None:
    assert topics.node_topic("lab-1", "n07", "status") == "testbed/v1/lab-1/node/n07/status"
    assert topics.lease_topic("lab-1") == "testbed/v1/lab-1/lease"
    assert topics.release_topic("lab-1", "alice") == "testbed/v1/lab-1/release/alice"
    assert topics.releaser_of("testbed/v1/lab-1/release/alice") == "alice"
    for other in ("testbed/v1/lab-1/lease", "testbed/v1/lab-1/release/", "testbed/v1/lab-1/release/A", "x"):
        assert topics.releaser_of(other) == ""
    assert topics.reply_topic("lab-1", "ctl", "n1") == "testbed/v1/lab-1/controller/ctl/reply/n1"
    assert topics.is_reply_topic("lab-1", "testbed/v1/lab-1/controller/ctl/reply/n1", "n1")
    assert topics.is_reply_topic("lab-1", "testbed/v1/lab-1/controller/ctl/reply", "n1"), "a controller of protocol 2"
    assert not topics.is_reply_topic("lab-1", "testbed/v1/lab-1/controller/ctl/reply/n2", "n1")
    assert not topics.is_reply_topic("lab-2", "testbed/v1/lab-1/controller/ctl/reply/n1", "n1")


@given(st.text(max_size=70))
def test_a_name_is_good_or_refused_by_name(name: str) -> None:
    good = re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", name) is not None
    for make in (topics.lease_topic, lambda n: topics.node_topic(n, "n1", "status")):
        if good:
            assert f"/{name}/" in make(name)
        else:
            with pytest.raises(UserError, match=r"^lab = "):
                make(name)


@pytest.mark.parametrize("name", ["", "-a", "A", "a_b", "a/b", "a+", "#", "ä", "a\n", "a" * 64])
def test_bad_names_of_nodes_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"node = .*: expected 1 to 63 of a-z, 0-9 and -"):
        topics.node_topic("lab", name, "status")


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [  # the examples of MQTT 3.1.1, section 4.7
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/tennis/player1/#", "sport/tennis", False),
        ("#", "a/b", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/uptime", False),
        ("+/uptime", "$SYS/uptime", False),
        ("$SYS/#", "$SYS/uptime", True),
    ],
)
def test_wildcards(pattern: str, topic: str, expected: bool) -> None:
    assert topics.matches(pattern, topic) is expected


@pytest.mark.parametrize("pattern", ["", "a/#/b", "a#", "+a/b", "a/b+"])
def test_bad_patterns_are_mistakes(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        topics.check_pattern(pattern)


@given(
    st.sampled_from(["127.0.0.1", "broker.lab", "::1"]),
    st.integers(1, 65535),
    st.none() | st.tuples(st.text(min_size=1, max_size=9), st.none() | st.text(max_size=9)),
    st.booleans(),
)
def test_addresses_are_read_back(host: str, port: int, user: tuple[str, str | None] | None, tls: bool) -> None:
    address = BrokerAddress(host, port, *(user or (None, None)), tls=tls)
    assert BrokerAddress.parse(address.url) == address


def test_an_address_has_defaults_and_keeps_its_secret() -> None:
    assert BrokerAddress.parse("mqtt://localhost") == BrokerAddress("localhost", 1883)
    assert BrokerAddress.parse("insecure+mqtt://broker") == BrokerAddress("broker", 1883)
    assert BrokerAddress.parse("mqtts://broker/") == BrokerAddress("broker", 8883, tls=True)
    address = BrokerAddress.parse("mqtt://me:geheim@127.0.0.1:7")
    assert address.password == "geheim"  # noqa: S105  made up
    assert "geheim" not in f"{address} {address!r}"


@pytest.mark.parametrize(
    "url",
    [
        "broker:1883",
        "http://broker",
        "mqtts://",
        "mqtts://b:0",
        "mqtts://b:99999",
        "mqtts://b/path",
        "mqtts://:geheim@b",
        "mqtt://b",
        "mqtt://me:geheim@192.0.2.1",
        "mqtt://127.0.0.1.example",
    ],
)
def test_bad_addresses_are_refused(url: str) -> None:
    with pytest.raises(UserError, match=r"broker = .*expected") as caught:
        BrokerAddress.parse(url)
    assert "geheim" not in str(caught.value)
