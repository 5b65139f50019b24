"""The controller alone determines the targets of live migrations; reports of nodes do not change them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from testbed.bus.messages import NodeFacts, NodeStatus, decode
from testbed.errors import UserError
from testbed.lab.migration_targets import migration_targets
from testbed.scenario.schema import Scenario, check_scenario


def scenario(**changes: object) -> Scenario:
    table: dict[str, object] = {
        "name": "s", "lab": "l", "policy": "FCFS", "workload": {}, "migration": {"mechanism": "live"},
        "nodes": [{"name": "n1", "driver": "libvirt"}, {"name": "n2", "driver": "libvirt"}], **changes,
    }  # fmt: skip
    return check_scenario(table, Path("s.toml"))


def facts(capabilities: tuple[str, ...] = ("live", "migration:tls"), driver: str = "libvirt") -> NodeFacts:
    return NodeFacts(
        cpus=1, memory_mib=1, machine_cores=1, machine_memory_mib=1, cpu_model="", kernel="", driver=driver,
        capabilities=capabilities, versions={}, address="198.51.100.66", image_port=1, image_free_mib=1,
    )  # fmt: skip


def several(**migration: object) -> Scenario:
    nodes = [
        {"name": "n1", "spawn": False, "migration": {"host": "192.0.2.1"}},
        {"name": "n2", "spawn": False, "migration": {"host": "192.0.2.2", "port": 16999, "bridge": "br7"}},
    ]
    return scenario(nodes=nodes, migration={"mechanism": "live", **migration})


def test_nodes_of_a_box_have_the_addresses_of_the_box_by_tls() -> None:
    targets = migration_targets(scenario(box={}), {"n1": facts(), "n2": facts()})
    assert [target.uri for target in targets.values()] == [
        "qemu+tls://10.77.255.1/system", "qemu+tls://10.77.255.2/system",
    ]  # fmt: skip
    second = targets[1]
    assert (second.host, second.node, second.partition, second.bridge) == ("10.77.255.2", "n2", "/dfrs-l-n2", "dfrs0")


def test_other_nodes_have_those_of_the_scenario() -> None:
    targets = migration_targets(several(), {"n2": facts(), "n1": facts()})  # in the order of the fleet
    assert [(target.node, target.uri) for target in targets.values()] == [
        ("n2", "qemu+tls://192.0.2.2:16999/system"), ("n1", "qemu+tls://192.0.2.1/system"),
    ]  # fmt: skip
    assert targets[0].bridge == "br7"


def test_plain_tcp_is_only_for_who_asks_for_it_by_name() -> None:
    plain = facts(("live", "migration:tcp"))
    found = migration_targets(several(transport="tcp"), {"n1": plain, "n2": plain})
    assert next(iter(found.values())).uri == "qemu+tcp://192.0.2.1/system"
    with pytest.raises(UserError, match="node n1: guests migrate to it by tcp: expected tls"):
        migration_targets(several(), {"n1": plain, "n2": plain})
    with pytest.raises(UserError, match="node n2: guests migrate to it by tls: expected tcp"):
        migration_targets(several(transport="tcp"), {"n1": plain, "n2": facts()})
    with pytest.raises(UserError, match="transport"):
        several(transport="ssh")


def test_a_status_cannot_say_where_guests_migrate_to() -> None:
    lie = msgspec.to_builtins(facts())
    lie["migration_uri"] = "qemu+ext://h/system?command=/tmp/pwn.sh"
    status = msgspec.json.encode({"v": 1, "node": "n2", "online": True, "facts": lie})
    told = decode(NodeStatus, status).facts
    assert told is not None
    targets = migration_targets(several(), {"n1": facts(), "n2": told})
    assert "ext" not in repr(targets)
    assert targets[1].host == "192.0.2.2"  # nor its address


def test_a_node_that_calls_itself_a_rehearsed_one_is_sent_to_nowhere() -> None:
    targets = migration_targets(several(), {"n1": facts(driver="null"), "n2": facts()})
    assert targets[0].uri == "null://n1/system"  # no libvirt accepts this: tests/agent/test_virt_migration.py


def test_nodes_that_cannot_are_left_out_and_one_without_a_place_is_named() -> None:
    unable = facts(("save",))
    assert list(migration_targets(several(), {"n1": unable, "n2": facts()})) == [1]
    assert migration_targets(scenario(), {"n1": unable, "n2": unable}) == {}
    with pytest.raises(UserError, match=r'node n1: .* expected migration = \{host = "ADDRESS"\}'):
        migration_targets(scenario(), {"n1": facts(), "n2": facts()})


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"host": "qemu+ext://h/system?command=x"}, r"nodes\.0\.migration\.host = .*: expected a host name or address"),
        ({"host": "root@h"}, "host name or address"),
        ({"host": "h/system"}, "host name or address"),
        ({"host": "h:16514"}, "host name or address"),
        ({"host": "h", "port": 0}, "port"),
        ({"host": "h", "bridge": "a b"}, "name of a bridge"),
        ({"host": "h", "partition": "/../x"}, "control group"),
        ({"host": "h", "uri": "x"}, "unknown key"),
        ({}, "missing key"),
    ],
)
def test_a_place_that_makes_no_sense_is_one_line(table: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        scenario(nodes=[{"name": "n1", "migration": table}])
    assert "\n" not in str(refused.value)


def test_a_box_has_places_of_its_own() -> None:
    with pytest.raises(UserError, match="addresses of its own"):
        scenario(box={}, nodes=[{"name": "n1", "migration": {"host": "h"}}])
