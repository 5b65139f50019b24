"""Derives the specification of a lab in a box from a scenario."""

from __future__ import annotations

import ipaddress

from testbed.errors import UserError
from testbed.lab.box.spec import BoxSpec, NodeSpec, prefix
from testbed.scenario.schema import Scenario

_MOST_NAME_CHARS = 60  # a host name has at most 64, a socket's path at most 107
_MOST_NODES = 250


def spec_of(scenario: Scenario) -> BoxSpec:
    """Return the specification of the lab that a scenario with a `[box]` describes; raises `UserError`."""
    box = scenario.box
    if box is None:
        raise UserError(f"scenario {scenario.name}: it has no [box] table, so there is no lab to make")
    if len(scenario.nodes) > _MOST_NODES:
        raise UserError(f"scenario {scenario.name}: {len(scenario.nodes)} nodes; a box has at most {_MOST_NODES}")
    for node in scenario.nodes:
        name = prefix(scenario.lab) + node.name
        if len(name) > _MOST_NAME_CHARS:
            raise UserError(f"node {node.name}: {name} has {len(name)} characters; expected {_MOST_NAME_CHARS} at most")
        if node.name in {"fabric", "broker"}:
            raise UserError(
                f"lab {scenario.lab}: a node named {node.name}; that is the name of another part of the lab"
            )
    network = ipaddress.IPv4Network(box.guest_network)
    last = int(network.broadcast_address) & ~0xFF
    nodes = tuple(
        NodeSpec(
            scenario.lab, node.name, node.cpus, node.memory_mib, node.driver,
            f"{ipaddress.IPv4Address(last + number)}/{network.prefixlen}", node.image_budget_mib,
            scenario.migration.transport, node.cpu_set,
        )
        for number, node in enumerate(scenario.nodes, start=1)
    )  # fmt: skip
    others = sorted({node.driver for node in nodes if node.has_libvirtd})
    nested = sorted({node.driver for node in nodes if node.is_nested})
    if others and nested:
        raise UserError(
            f"scenario {scenario.name}: nodes with driver {nested[0]} and with driver {others[0]}: expected one of "
            "them alone, as neither restores what the other saved"
        )
    for made in nodes:
        if made.is_nested and made.cpu_set:
            raise UserError(
                f"scenario {scenario.name}: node {made.name}: cpu_set = {list(made.cpu_set)}: expected none, as a node "
                f"with driver {made.driver} is a machine with CPUs of its own"
            )
    kind = scenario.broker.kind
    if kind is None:
        raise UserError(f"scenario {scenario.name}: a [box] brings its own broker; leave broker.address out")
    return BoxSpec(scenario.lab, nodes, kind, box.link_mbit_per_s, box.emulator_headroom_frac, box.xen_scheduler)
