"""Destinations of live migrations: taken from the scenario and the lab in a box, never from a node's messages.

From a node's messages only its capabilities are used, by which it takes part or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from testbed.bus.drivers import traits_in
from testbed.bus.messages import NodeFacts
from testbed.bus.migration import HYPERVISORS, Destination, migration_uri
from testbed.bus.traits import DriverTraits
from testbed.errors import UserError
from testbed.lab.box.network import BRIDGE
from testbed.lab.boxes import spec_of
from testbed.scenario.schema import NodeTable, Scenario


def migration_targets(scenario: Scenario, facts: Mapping[str, NodeFacts]) -> Mapping[int, Destination]:
    """Return the destinations of live migrations, by index in `facts` of the nodes that can take part.

    Raises `UserError` for a node that accepts live migrations, but not at the scenario's address and transport.
    """
    tables = {node.name: node for node in scenario.nodes}
    return {
        index: _target(scenario, tables[name], traits_in(fact), fact.capabilities)
        for index, (name, fact) in enumerate(facts.items())
        if "live" in fact.capabilities
    }


def _target(scenario: Scenario, node: NodeTable, traits: DriverTraits, capabilities: Sequence[str]) -> Destination:
    if traits.simulated:
        return Destination(uri=f"null://{node.name}/system", host=node.name, node=node.name)
    transport = scenario.migration.transport
    offered = [each.partition(":")[2] for each in capabilities if each.startswith("migration:")]
    if offered != [transport]:
        raise UserError(
            f"node {node.name}: guests migrate to it by {' or '.join(offered) or 'no reported transport'}: expected "
            f"{transport}, as [migration] transport says"
        )
    hypervisor = traits.hypervisor if traits.hypervisor in HYPERVISORS else HYPERVISORS[0]
    if scenario.box is not None:
        there = next(each for each in spec_of(scenario).nodes if each.name == node.name)
        uri = migration_uri(hypervisor, transport, there.host)
        return Destination(uri=uri, host=there.host, node=node.name, partition=f"/{there.full_name}", bridge=BRIDGE)
    place = node.migration
    if place is None:
        raise UserError(
            f"node {node.name}: guests can migrate to it live, but it has no address for that: expected migration "
            '= {host = "ADDRESS"} in its table [[nodes]], or mechanism = "save-restore"'
        )
    uri = migration_uri(hypervisor, transport, place.host, place.port)
    return Destination(uri=uri, host=place.host, node=node.name, partition=place.partition, bridge=place.bridge)
