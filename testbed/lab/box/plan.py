"""The parts of a lab in creation order: layers in sequence, the parts of one layer in parallel."""

from __future__ import annotations

from collections.abc import Callable

from testbed.lab.box.certificates import Certificates
from testbed.lab.box.control_group import ControlGroup
from testbed.lab.box.hypervisor import Libvirtd
from testbed.lab.box.namespaces import RUN_FOLDERS, STORE_FOLDERS, NodeNamespaces
from testbed.lab.box.network import Fabric, NodeNetwork
from testbed.lab.box.partition import Partition
from testbed.lab.box.parts import Folders, Part
from testbed.lab.box.services import Broker, NodeAgent
from testbed.lab.box.spec import BoxSpec, NodeSpec, lab_dir, store_dir
from testbed.lab.box.state import Journal
from testbed.lab.box.xen import machine
from testbed.lab.box.xen.agent import XenAgent
from testbed.lab.box.xen.agent_disk import AgentDisk
from testbed.lab.box.xen.machine import XenMachine

Layers = list[list[Part]]


def layers_of(spec: BoxSpec, journal: Journal, say: Callable[[str], None] = lambda _line: None) -> Layers:
    """Return the parts of a lab in layers; each layer needs those before it, and layers are removed in reverse order.

    `say` gets a line before an unusually slow step.
    """
    nested = [node for node in spec.nodes if node.is_nested]
    rooms = [node for node in spec.nodes if not node.is_nested]
    virtual = [node for node in rooms if node.has_libvirtd]
    return [
        [Folders(lab_dir(spec.lab), ("broker", *_inside(rooms, RUN_FOLDERS), *_inside(nested, machine.RUN_FOLDERS)))],
        [
            Folders(store_dir(spec.lab), (*_inside(rooms, STORE_FOLDERS), *_inside(nested, machine.STORE_FOLDERS))),
            ControlGroup(spec.lab),
        ],
        [
            *(Fabric(spec), Broker(spec, journal)),
            *(Partition(spec, node) for node in [*virtual, *nested]),
            *([AgentDisk(spec)] if nested else []),
            *([Certificates(spec)] if any(node.transport == "tls" for node in virtual) else []),
        ],
        [NodeNetwork(spec, node) for node in spec.nodes],
        [
            *(NodeNamespaces(node, journal) for node in rooms),
            *(XenMachine(spec, node, journal, say) for node in nested),
        ],
        [Libvirtd(node, journal) for node in virtual],
        [agent_of(node, journal) for node in spec.nodes],
    ]


def agent_of(node: NodeSpec, journal: Journal) -> NodeAgent:
    """Return the agent of a node."""
    return XenAgent(node, journal) if node.is_nested else NodeAgent(node, journal)


def _inside(nodes: list[NodeSpec], folders: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{node.name}/{name}" for node in nodes for name in folders)
